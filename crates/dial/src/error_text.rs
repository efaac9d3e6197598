//! Texts of errors as upstream's events have them, because users search for them.

use std::error::Error;
use std::io;

/// The operating system's error alone, as in `connection refused`.
pub(crate) fn cause(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    let text = error.to_string();
    let text = match text.find(" (os error ") {
        Some(end) => &text[..end],
        None => &text,
    };
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// The operating system's error behind another one.
pub(crate) fn io_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_read_as_in_go() {
        let check = |error: io::Error, expected: &str| assert_eq!(cause(&error), expected);
        check(
            io::Error::from_raw_os_error(libc::ECONNREFUSED),
            "connection refused",
        );
        check(
            io::Error::from_raw_os_error(libc::EHOSTUNREACH),
            "no route to host",
        );
        check(
            io::Error::from_raw_os_error(libc::ECONNRESET),
            "connection reset by peer",
        );
        check(io::Error::from(io::ErrorKind::UnexpectedEof), "EOF");
        check(io::Error::other("Odd thing"), "odd thing");
    }
}
