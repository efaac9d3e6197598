//! Expectations taken from upstream's behaviour for the same texts.

use proptest::prelude::*;

use super::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check(text: &str, printed: &str, canonical: &str, value: i64, milli: i64) {
    let parsed = quantity(text);
    let seen = (
        parsed.to_string(),
        parsed.canonical(),
        parsed.value(),
        parsed.milli_value(),
    );
    assert_eq!(
        seen,
        (printed.to_owned(), canonical.to_owned(), value, milli),
        "{text:?}"
    );
}

#[test]
fn reads_and_prints() {
    check("0", "0", "0", 0, 0);
    check("1", "1", "1", 1, 1000);
    check("-1", "-1", "-1", -1, -1000);
    check("100m", "100m", "100m", 1, 100);
    check("1500m", "1500m", "1500m", 2, 1500);
    check("1.5", "1500m", "1500m", 2, 1500);
    check("1.500", "1.500", "1500m", 2, 1500);
    check("0.5", "500m", "500m", 1, 500);
    check("2000m", "2", "2", 2, 2000);
    check("1000", "1k", "1k", 1000, 1_000_000);
    check("1e3", "1e3", "1e3", 1000, 1_000_000);
    check("1E3", "1E3", "1e3", 1000, 1_000_000);
    check("12e6", "12e6", "12e6", 12_000_000, 12_000_000_000);
    check("1E", "1E", "1E", 1_000_000_000_000_000_000, 0);
    check("1Ki", "1Ki", "1Ki", 1024, 1_024_000);
    check("8Ki", "8Ki", "8Ki", 8192, 8_192_000);
    check("1024Ki", "1Mi", "1Mi", 1_048_576, 1_048_576_000);
    check("0.5Ki", "512", "512", 512, 512_000);
    check("1.5Gi", "1536Mi", "1536Mi", 1_610_612_736, 1_610_612_736_000);
    check("100Mi", "100Mi", "100Mi", 104_857_600, 104_857_600_000);
    check("1n", "1n", "1n", 1, 1);
    check("0.1n", "1n", "1n", 1, 1);
    check("-0.1n", "-1n", "-1n", 1, 1);
    check("+5Ki", "+5Ki", "5Ki", 5120, 5_120_000);
    check(".", "0", "0", 0, 0);
    check("+", "0", "0", 0, 0);
    check("Ki", "0", "0", 0, 0);
    check(
        "2080777039947M",
        "2080777039947M",
        "2080777039947M",
        2_080_777_039_947_000_000,
        -3_705_040_382_179_332_608,
    );
    check("0Ki", "0", "0", 0, 0);
    check(
        "9223372036854775807",
        "9223372036854775807",
        "9223372036854775807",
        i64::MAX,
        -1000,
    );
    check(
        "8Ei",
        "9223372036854775807",
        "9223372036854775807",
        i64::MAX,
        -1000,
    );
    check(
        "1000000000000000000000",
        "1",
        "1",
        3_875_820_019_684_212_736,
        2_003_764_205_206_896_640,
    );
    check(
        "123456789012345678901",
        "123456789012345678901",
        "123456789012345678901",
        -5_670_419_503_621_182_411,
        -7_269_072_992_350_064_888,
    );
}

#[test]
fn refuses() {
    for text in [
        "", " 1", "1 ", "1.1.1", "1+1", "1Kii", "1k1", "abc", "1MM", "1e", "1e1.5", "--1", "Pi", "-Ei",
        "1,5", "1é", "é",
    ] {
        assert!(text.parse::<Quantity>().is_err(), "{text:?}");
    }
}

#[test]
fn exponents_of_any_size_are_answered_at_once() {
    for text in [
        "1e2000000000",
        "1e-2000000000",
        "12345678901234567890e2000000000",
        "0e2000000000",
        "-1e2147483647",
    ] {
        let mut number = quantity(text);
        let _ = (
            number.value(),
            number.milli_value(),
            number.to_string(),
            number.cmp(&quantity("1")),
        );
        number.add(&quantity("12345678901234567890.5"));
        number.sub(&quantity("1n"));
        let _ = (number.to_string(), number.round_up(0));
    }
    assert!(quantity("1e2000000000") > quantity("1e1999999999"));
    assert!(quantity("-1e2000000000") < quantity("0"));
}

#[test]
fn adds_and_subtracts() {
    let add = |left: &str, right: &str| {
        let mut sum = quantity(left);
        sum.add(&quantity(right));
        sum.to_string()
    };
    assert_eq!(add("0", "1Ki"), "1Ki");
    assert_eq!(add("1Ki", "1k"), "2024");
    assert_eq!(add("1", "1m"), "1001m");
    assert_eq!(add("9223372036854775807", "1"), "9223372036854775808");
    assert_eq!(add("9223372036854775807n", "1"), "9223372037854775807n");
    let mut difference = quantity("1Gi");
    difference.sub(&quantity("1Mi"));
    assert_eq!(difference.to_string(), "1023Mi");
}

/// Numbers that upstream keeps in its small form.
fn arbitrary_text() -> impl Strategy<Value = String> {
    let suffix = prop::sample::select(vec![
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "e3", "e-3", "E6", "e9",
    ]);
    ("[-+]?[0-9]{1,22}(\\.[0-9]{0,12})?", suffix).prop_map(|(number, suffix)| format!("{number}{suffix}"))
}

proptest! {
    #[test]
    fn printed_form_is_the_same_amount(text in "[-+]?[0-9]{1,12}(\\.[0-9]{0,9})?(m|k|M|Ki|Mi|e3)?") {
        let parsed = quantity(&text);
        prop_assert_eq!(&quantity(&parsed.to_string()), &parsed);
        prop_assert_eq!(&quantity(&parsed.canonical()), &parsed);
    }

    #[test]
    fn addition_is_undone_by_subtraction(left in arbitrary_text(), right in arbitrary_text()) {
        let (left, right) = (quantity(&left), quantity(&right));
        let mut result = left.clone();
        result.add(&right);
        prop_assert_eq!(result.cmp(&left) as i32, right.signum());
        result.sub(&right);
        prop_assert_eq!(result, left);
    }

    #[test]
    fn order_is_antisymmetric(left in arbitrary_text(), right in arbitrary_text()) {
        let (left, right) = (quantity(&left), quantity(&right));
        prop_assert_eq!(left.cmp(&right), right.cmp(&left).reverse());
    }

    #[test]
    fn any_text_gives_an_answer(text in "\\PC{0,24}") {
        if let Ok(mut parsed) = text.parse::<Quantity>() {
            let _ = (parsed.to_string(), parsed.value(), parsed.milli_value(), parsed.round_up(0));
        }
    }

    #[test]
    fn any_quantity_like_text_gives_an_answer(text in "[-+]?[0-9.]{0,30}([eE][-+]?[0-9]{0,12}|[numkKMGTPEi]{0,2})") {
        if let Ok(mut parsed) = text.parse::<Quantity>() {
            let other = parsed.clone();
            let _ = (parsed.to_string(), parsed.value(), parsed.milli_value(), parsed.cmp(&quantity("1")));
            parsed.add(&other);
            parsed.add(&quantity("1m"));
            let _ = (parsed.to_string(), parsed.round_up(-3));
        }
    }
}
