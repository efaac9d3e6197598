//! What LLVM's linker notes about a link: where each piece of each object file went.
//!
//! Owns the format of the notes and of Rust's symbol names. It does not know what is large.

/// A piece of an object file: a function, a table, a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The section of the binary that it is in.
    pub(crate) section: String,
    pub(crate) bytes: u64,
    /// The crate that it was made for.
    pub(crate) home: String,
    pub(crate) name: String,
}

/// The pieces of all sections, in the order of the notes.
pub(crate) fn pieces(map: &str) -> Vec<Piece> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in map.lines() {
        let Some((bytes, indent, rest)) = columns(line) else {
            continue;
        };
        match indent {
            0 => rest.clone_into(&mut section),
            // Symbols stand deeper: they are what the pieces consist of.
            8 => {
                let (file, inside) = rest.rsplit_once(":(").unwrap_or((rest, ""));
                found.push(Piece {
                    section: section.clone(),
                    bytes,
                    home: home(file),
                    name: readable(inside.trim_end_matches(')')),
                });
            }
            _ => {}
        }
    }
    found
}

/// Two addresses, the size and the alignment; the depth of what follows says what it is.
fn columns(line: &str) -> Option<(u64, usize, &str)> {
    let mut rest = line;
    let mut fields = [""; 4];
    for field in &mut fields {
        rest = rest.trim_start();
        let end = rest.find(' ')?;
        (*field, rest) = rest.split_at(end);
    }
    let bytes = u64::from_str_radix(fields[2], 16).ok()?;
    let rest = rest.strip_prefix(' ')?;
    let text = rest.trim_start();
    Some((bytes, rest.len() - text.len(), text))
}

/// `rubelet-0123456789abcdef.h2-0123456789abcdef.h2…` and `libaws_lc_sys-0123….rlib(file.o)` name the crate.
fn home(file: &str) -> String {
    let name = file.rsplit_once('/').map_or(file, |(_, name)| name);
    let inner = match name.split_once('.') {
        Some((program, rest)) if !name.starts_with("lib") && program.contains('-') => rest,
        _ => name.strip_prefix("lib").unwrap_or(name),
    };
    let end = inner.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    inner[..end.unwrap_or(inner.len())].to_owned()
}

/// `.text._ZN4core3ptr…17h0123456789abcdefE` as `core::ptr::…`.
fn readable(symbol: &str) -> String {
    let Some((_, mangled)) = symbol.split_once("_ZN") else {
        return symbol.to_owned();
    };
    let mut parts = Vec::new();
    let mut rest = mangled;
    while let Some(digits) = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .filter(|digits| *digits > 0)
    {
        let Some(part) = rest[..digits]
            .parse()
            .ok()
            .and_then(|length: usize| rest.get(digits..digits + length))
        else {
            break;
        };
        parts.push(part);
        rest = &rest[digits + part.len()..];
    }
    let is_hash = |part: &&str| part.len() == 17 && part.starts_with('h');
    if parts.last().is_some_and(is_hash) {
        parts.pop();
    }
    let mut name = parts.join("::");
    for (escaped, letter) in [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$LP$", "("),
        ("$RP$", ")"),
        ("$C$", ","),
        ("$u20$", " "),
        ("$u27$", "'"),
        ("$u5b$", "["),
        ("$u5d$", "]"),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("..", "::"),
    ] {
        name = name.replace(escaped, letter);
    }
    name.trim_start_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
             2e0              2e0       1c     1 .interp
             2e0              2e0       1c     1         <internal>:(.interp)
          60e260           60e260      39d    16 .text
          60e260           60e260      39d    16         /x/deps/rubelet-774642047c902f0e.h2-7c602164954bf797.h2.1674674537a187ab-cgu.0.rcgu.o.rcgu.o:(.text._ZN69_$LT$h2..proto..streams..state..Inner$u20$as$u20$core..fmt..Debug$GT$3fmt17he6968399a05fde5dE.llvm.1)
          60e260           60e260      39d     1                 h2::fmt
          60e600           60e600       10    16         /x/deps/rubelet-774642047c902f0e.rubelet.9bd5-cgu.0.rcgu.o:(.text._ZN7rubelet4main17h277d62bf51fa4c64E)
          60e610           60e610        f    16         /x/deps/libaws_lc_sys-fcd2ce2fc3e8d5ad.rlib(bcm.o):(.text.md5)
";

    #[test]
    fn pieces_have_their_section_size_crate_and_name() {
        let piece = |section: &str, bytes, home: &str, name: &str| Piece {
            section: section.to_owned(),
            bytes,
            home: home.to_owned(),
            name: name.to_owned(),
        };
        let debug = "<h2::proto::streams::state::Inner as core::fmt::Debug>::fmt";
        let expected = [
            piece(".interp", 0x1c, "", ".interp"),
            piece(".text", 0x39d, "h2", debug),
            piece(".text", 0x10, "rubelet", "rubelet::main"),
            piece(".text", 0xf, "aws_lc_sys", ".text.md5"),
        ];
        assert_eq!(pieces(MAP), expected);
    }

    #[test]
    fn other_text_has_no_pieces() {
        assert_eq!(
            pieces("Memory Configuration\n\nName  Origin\n.text 0x1 0x2 x.o\n"),
            []
        );
    }
}
