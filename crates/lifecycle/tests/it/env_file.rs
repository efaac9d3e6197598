//! Variables from files.

use rubelet_lifecycle::configuration::env_file::{EnvFileError, value_of};

#[test]
fn values_are_found() {
    let check = |content: &str, expected: Result<&str, EnvFileError>| {
        let found = value_of(content.as_bytes(), "KEY");
        assert_eq!(found.as_deref().map_err(|error| *error), expected, "{content:?}");
    };
    check("KEY='value'", Ok("value"));
    check("\n# KEY='no'\n  \n\tKEY='value' # why\n", Ok("value"));
    check("OTHER='x'\nKEY='value'\n", Ok("value"));
    check("KEY='first'\nKEY='second'\n", Ok("first"));
    check("KEY='a\nb # no comment\n\n  c'\n", Ok("a\nb # no comment\n\n  c"));
    check("KEY='$HOME \"\\n`'", Ok("$HOME \"\\n`"));
    check("KEY=''", Ok(""));
    check("KEY= 'value'", Ok(""));
    check("OTHER= x\nKEY='value'", Ok("value"));
    check("KEY='value'\r\n", Ok("value"));
    check("", Ok(""));
    check("OTHER='x'", Ok(""));
    // What comes after the wanted one is not looked at.
    check("KEY='value'\nbroken", Ok("value"));
    check("broken\nKEY='value'", Err(EnvFileError::NoEqualsSign(1)));
    check("# x\n='value'", Err(EnvFileError::NoName(2)));
    check("KEY ='value'", Err(EnvFileError::SpaceBeforeEqualsSign(1)));
    check("KEY=value", Err(EnvFileError::NotQuoted(1)));
    check("KEY=\"value\"", Err(EnvFileError::NotQuoted(1)));
    check("KEY=", Err(EnvFileError::NotQuoted(1)));
    check("KEY='value'x", Err(EnvFileError::AfterQuote(1)));
    check("KEY='a\nb'x", Err(EnvFileError::AfterQuote(2)));
    check("A='x'\nKEY='value\n\n", Err(EnvFileError::NotClosed(2)));
    check(
        &format!("A='{}'", "x".repeat(70_000)),
        Err(EnvFileError::TooLong(1)),
    );
    assert_eq!(value_of(b"KEY='\xff'", "KEY"), Err(EnvFileError::NotText));
}
