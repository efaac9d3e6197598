//! Pages of metrics, compressed where the client wants it.
//!
//! Owns the choice of the encoding, by the rule of upstream's library, and the pace of a page that is sent in pieces: one is made when there
//! is room for it, so that a slow client costs no more than two of them.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use rubelet_ports::PagePieces;
use tokio::sync::mpsc;

use crate::response::{Answer, Body, metrics_text};

/// Pieces that wait to be sent.
const PIECES_UNDER_WAY: usize = 1;

/// A page that is there already.
pub(crate) fn whole(page: impl AsRef<[u8]> + Into<Bytes>, headers: &HeaderMap) -> Answer {
    if !wants_gzip(headers) {
        return metrics_text(Body::whole(page));
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing into memory cannot fail.
    let packed = packed.write_all(page.as_ref()).and_then(|()| packed.finish());
    compressed(metrics_text(Body::whole(packed.unwrap_or_default())))
}

/// A page that is made while it is sent. It ends where the client goes.
pub(crate) fn in_pieces(pieces: PagePieces, headers: &HeaderMap) -> Answer {
    let (sender, receiver) = mpsc::channel(PIECES_UNDER_WAY);
    let answer = metrics_text(Body::pieces(receiver));
    if wants_gzip(headers) {
        tokio::spawn(send_compressed(pieces, sender));
        compressed(answer)
    } else {
        tokio::spawn(send_plain(pieces, sender));
        answer
    }
}

fn compressed(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer
}

async fn send_plain(mut pieces: PagePieces, sender: mpsc::Sender<Bytes>) {
    // Room first: a piece that no client takes is not made.
    while let Ok(room) = sender.reserve().await {
        match pieces.next() {
            Some(piece) => room.send(Bytes::from(piece)),
            None => return,
        }
    }
}

async fn send_compressed(mut pieces: PagePieces, sender: mpsc::Sender<Bytes>) {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    while let Ok(room) = sender.reserve().await {
        let piece = pieces.next();
        // Writing into memory cannot fail.
        let _ = match &piece {
            Some(piece) => packed.write_all(piece),
            None => packed.try_finish(),
        };
        let bytes = std::mem::take(packed.get_mut());
        if !bytes.is_empty() {
            room.send(Bytes::from(bytes));
        }
        if piece.is_none() {
            return;
        }
    }
}

/// Whether gzip comes before no compression among what the client accepts.
fn wants_gzip(headers: &HeaderMap) -> bool {
    let mut weights = [("identity", None), ("gzip", None)];
    let lists = headers.get_all(ACCEPT_ENCODING).into_iter();
    let items = lists
        .filter_map(|list| list.to_str().ok())
        .flat_map(|list| list.split(','));
    for item in items {
        let mut fields = item.split(';').map(str::trim);
        let name = fields.next().unwrap_or_default();
        let weight = fields.find_map(|field| field.strip_prefix("q=")?.parse::<f32>().ok());
        let weight = weight.unwrap_or(1.0);
        for (known, best) in &mut weights {
            let is_meant = name == "*" || name.eq_ignore_ascii_case(known);
            if is_meant && best.is_none_or(|best| weight > best) {
                *best = Some(weight);
            }
        }
    }
    let [(_, identity), (_, gzip)] = weights;
    gzip.is_some_and(|gzip| gzip > 0.0 && identity.is_none_or(|identity| gzip > identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_clients_that_prefer_it() {
        let check = |accepted: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(accepted))]);
            assert_eq!(wants_gzip(&headers), expected, "{accepted:?}");
        };
        check("gzip", true);
        check("GZIP", true);
        check("deflate, gzip;q=0.5", true);
        check("gzip;q=0", false);
        check("identity", false);
        check("gzip;q=0.5, identity", false);
        check("*", false);
        check("br", false);
        check("", false);
        assert!(!wants_gzip(&HeaderMap::new()));
    }
}
