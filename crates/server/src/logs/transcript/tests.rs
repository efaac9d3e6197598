//! Tables and properties of the transcript.

use proptest::prelude::*;

use super::*;

const LOG: &str = "\
2016-10-06T00:17:09.669794202Z stdout F one\n\
2016-10-06T00:17:10.669794202Z stderr P two \n\
2016-10-06T00:17:11.669794202Z stderr F and more\n\
2016-10-06T00:17:12Z stdout F \n\
2016-10-06T00:17:13.5+02:00 stdout F:x:y four\n";

fn read(log: &[u8], options: &LogOptions, piece_bytes: usize) -> Result<Vec<u8>, String> {
    let mut transcript = Transcript::new(options);
    let mut out = Vec::new();
    for piece in log.chunks(piece_bytes.max(1)) {
        if transcript.take(piece, &mut out)? == Progress::Done {
            return Ok(out);
        }
    }
    transcript.finish(&mut out)?;
    Ok(out)
}

fn check(log: &str, options: &LogOptions, expected: &str) {
    for piece_bytes in [1, 7, 1 << 20] {
        let out = read(log.as_bytes(), options, piece_bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&out), expected, "{options:?}");
    }
}

#[test]
fn lines_are_joined_and_stamped() {
    check(LOG, &LogOptions::default(), "one\ntwo and more\n\nfour\n");
    let timestamps = LogOptions {
        timestamps: true,
        ..LogOptions::default()
    };
    check(
        LOG,
        &timestamps,
        "2016-10-06T00:17:09.669794202Z one\n\
         2016-10-06T00:17:10.669794202Z two and more\n\
         2016-10-06T00:17:12.000000000Z \n\
         2016-10-06T00:17:13.500000000+02:00 four\n",
    );
}

#[test]
fn limits_are_kept() {
    let limit = |bytes| LogOptions {
        limit_bytes: Some(bytes),
        ..LogOptions::default()
    };
    check(LOG, &limit(1), "o");
    check(LOG, &limit(6), "one\ntw");
    check(LOG, &limit(1000), "one\ntwo and more\n\nfour\n");
    let stamped = LogOptions {
        timestamps: true,
        ..limit(4)
    };
    check(LOG, &stamped, "2016");
    let tail = |lines| LogOptions {
        tail_lines: Some(lines),
        ..LogOptions::default()
    };
    check(LOG, &tail(0), "");
    check(LOG, &tail(1), "one\n");
    check(LOG, &tail(2), "one\ntwo ");
    let followed = LogOptions {
        follow: true,
        ..tail(1)
    };
    check(LOG, &followed, "one\ntwo and more\n\nfour\n");
    let stderr = LogOptions {
        single_stream: Some(LogStream::Stderr),
        ..LogOptions::default()
    };
    check(LOG, &stderr, "two and more\n");
    let since = LogOptions {
        since: rfc3339::parse("2016-10-06T00:17:11.669794202Z"),
        ..LogOptions::default()
    };
    // The last line's zone makes it two hours older than it looks.
    check(LOG, &since, "and more\n\n");
}

#[test]
fn other_formats_and_noise() {
    check(
        "{\"log\":\"one\\n\",\"stream\":\"stdout\",\"time\":\"2016-10-20T18:39:20.57606443Z\"}\n",
        &LogOptions::default(),
        "one\n",
    );
    // A line without its end, as a runtime leaves it that was killed.
    check("2016-10-06T00:17:09Z stdout F one", &LogOptions::default(), "one");
    check(
        "2016-10-06T00:17:09Z stdout F one\nnoise\n2016-10-06T00:17:09Z stdnone F x\n2016-10-06T00:17:09Z stdout F two\n",
        &LogOptions::default(),
        "one\ntwo\n",
    );
    check("", &LogOptions::default(), "");
    let problem = read(b"\x00noise\n", &LogOptions::default(), 3).unwrap_err();
    assert_eq!(
        problem,
        "failed to get parse function: unsupported log format: \"\\0noise\\n\""
    );
}

#[test]
fn a_line_without_end_is_passed_on_in_bounded_memory() {
    let long = "x".repeat(3 * LINE_LIMIT_BYTES);
    for (tag, end) in [("F", "\n"), ("P", "")] {
        let log = format!("2016-10-06T00:17:09Z stdout {tag} {long}\n2016-10-06T00:17:09Z stdout F after\n");
        let options = LogOptions::default();
        let mut transcript = Transcript::new(&options);
        let mut out = Vec::new();
        for piece in log.as_bytes().chunks(10_000) {
            transcript.take(piece, &mut out).unwrap();
            assert!(transcript.pending.len() <= LINE_LIMIT_BYTES + 10_000);
        }
        assert_eq!(out, format!("{long}{end}after\n").into_bytes(), "{tag}");
    }
}

fn almost_a_line() -> impl Strategy<Value = Vec<u8>> {
    let time = prop_oneof![
        4 => Just("2016-10-06T00:17:09.5Z".to_owned()),
        2 => Just("2016-10-06T02:17:11.123456789+02:00".to_owned()),
        1 => "[0-9TZ:.+-]{0,30}",
    ];
    let stream = prop_oneof![4 => Just("stdout"), 4 => Just("stderr"), 1 => Just("stdin"), 1 => Just("")];
    let tag = prop_oneof![4 => Just("F"), 4 => Just("P"), 1 => Just("F:x"), 1 => Just("P:"), 1 => Just("")];
    let end = prop_oneof![9 => Just("\n"), 1 => Just("")];
    (
        time,
        stream,
        tag,
        prop::collection::vec(any::<u8>(), 0..30),
        end,
        any::<bool>(),
    )
        .prop_map(|(time, stream, tag, content, end, is_json)| {
            if is_json {
                let log = String::from_utf8_lossy(&content);
                let entry = serde_json::json!({ "log": log, "stream": stream, "time": time });
                return format!("{entry}{end}").into_bytes();
            }
            let mut line = format!("{time} {stream} {tag} ").into_bytes();
            line.extend(content);
            line.extend(end.bytes());
            line
        })
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        lines in prop::collection::vec(("[a-z ]{0,20}", any::<bool>()), 0..20),
        piece_bytes in 1usize..50,
        timestamps: bool,
        limit_bytes in prop::option::of(1u64..200),
        tail_lines in prop::option::of(0u64..10),
    ) {
        let log: String = lines
            .iter()
            .map(|(text, partial)| {
                let tag = if *partial { 'P' } else { 'F' };
                format!("2016-10-06T00:17:09.5Z stdout {tag} {text}\n")
            })
            .collect();
        let options = LogOptions { timestamps, limit_bytes, tail_lines, ..LogOptions::default() };
        let whole = read(log.as_bytes(), &options, 1 << 20);
        prop_assert_eq!(&read(log.as_bytes(), &options, piece_bytes), &whole);
        let whole = whole.unwrap();
        prop_assert!(whole.len() as u64 <= limit_bytes.unwrap_or(u64::MAX));
    }

    #[test]
    fn no_bytes_upset_it(log: Vec<u8>, piece_bytes in 1usize..10) {
        let _ = read(&log, &LogOptions { timestamps: true, ..LogOptions::default() }, piece_bytes);
    }

    /// Lines that are right, nearly right and wrong, in both formats: however they are cut, the same comes out, and no more
    /// than was asked for.
    #[test]
    fn nearly_right_lines_do_not_upset_it(
        lines in prop::collection::vec(almost_a_line(), 0..20),
        piece_bytes in 1usize..60,
        timestamps: bool,
        follow: bool,
        since in prop::option::of(Just("2016-10-06T00:17:10Z")),
        limit_bytes in prop::option::of(1u64..200),
        stderr_only: bool,
    ) {
        let log = lines.concat();
        let options = LogOptions {
            timestamps,
            follow,
            limit_bytes,
            since: since.and_then(rfc3339::parse),
            single_stream: stderr_only.then_some(LogStream::Stderr),
            ..LogOptions::default()
        };
        let whole = read(&log, &options, 1 << 20);
        prop_assert_eq!(&read(&log, &options, piece_bytes), &whole);
        if let (Ok(whole), Some(limit)) = (whole, limit_bytes) {
            prop_assert!(whole.len() as u64 <= limit);
        }
    }
}
