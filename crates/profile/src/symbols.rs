//! What is at an address: the functions and lines of the program, and the files that are mapped.
//!
//! Owns the reading of both. A binary without symbols gives no functions; the addresses alone then lead there, with the files.

use std::ptr;

/// A function at an address, and the line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) function: FunctionName,
    pub(crate) line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FunctionName {
    /// For people.
    pub(crate) name: String,
    /// For the linker.
    pub(crate) symbol: String,
    /// Empty where it is not known.
    pub(crate) file: String,
}

/// A file with code, or a part of one, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) path: String,
}

/// The function at an address, after those that are inlined there.
pub(crate) fn resolve(address: usize) -> Vec<Spot> {
    let mut spots = Vec::new();
    // The library takes what it is given for a place that a call returns to, and looks one byte before it.
    backtrace::resolve(ptr::without_provenance_mut(address + 1), |symbol| {
        if let Some(name) = symbol.name() {
            let function = FunctionName {
                name: format!("{name:#}"),
                symbol: String::from_utf8_lossy(name.as_bytes()).into_owned(),
                file: symbol
                    .filename()
                    .map(|file| file.display().to_string())
                    .unwrap_or_default(),
            };
            let line = symbol.lineno().unwrap_or_default();
            spots.push(Spot { function, line });
        }
    });
    spots
}

/// Gives back the memory that names were looked up in.
pub(crate) fn forget() {
    backtrace::clear_symbol_cache();
}

/// The mapped code in the kernel's list of a process's memory.
pub(crate) fn mappings(list: &str) -> Vec<MappedFile> {
    list.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<MappedFile> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let path = fields.nth(2)?.trim_start();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    (permissions.contains('x') && !path.is_empty()).then_some(())?;
    Some(MappedFile {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_code_are_mappings() {
        let check = |line: &str, expected: Option<(u64, u64, u64, &str)>| {
            let expected = expected.map(|(start, end, offset, path)| MappedFile {
                start,
                end,
                offset,
                path: path.to_owned(),
            });
            assert_eq!(mappings(line), Vec::from_iter(expected), "{line}");
        };
        check(
            "55e0-55f0 r-xp 00001000 fe:01 4711                       /usr/bin/a program",
            Some((0x55e0, 0x55f0, 0x1000, "/usr/bin/a program")),
        );
        check(
            "7ffd-7fff r-xp 00000000 00:00 0                          [vdso]",
            Some((0x7ffd, 0x7fff, 0, "[vdso]")),
        );
        check(
            "55e0-55f0 r--p 00001000 fe:01 4711                       /usr/bin/rubelet",
            None,
        );
        check("55e0-55f0 rwxp 00000000 00:00 0 ", None);
        check("55e0-55f0 rwxp 00000000 00:00 0", None);
        check("", None);
    }

    #[test]
    fn a_function_is_found_by_its_address() {
        let here = only_files_with_code_are_mappings as *const ();
        let found = resolve(here.addr());
        let names: Vec<&str> = found.iter().map(|spot| spot.function.name.as_str()).collect();
        assert!(
            names
                .iter()
                .any(|name| name.ends_with("only_files_with_code_are_mappings")),
            "{names:?}"
        );
    }
}
