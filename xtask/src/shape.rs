//! Limits on the shape of production code: fields of a struct, lines of a function, files that change one struct.
//!
//! Owns the limits and reads the sources of every crate outside the support layer. Code that is over a limit today is in the
//! list of exceptions, which can only shrink: an exception that is no longer needed is a problem too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::Metadata;
use syn::spanned::Spanned as _;
use syn::visit::Visit;
use syn::{
    Attribute, Block, Expr, FnArg, ImplItem, ItemFn, ItemImpl, ItemMod, ItemStruct, ReceiverKind, Signature,
    Stmt, Type,
};

const MAX_FIELDS: usize = 20;
const MAX_FUNCTION_LINES: usize = 80;

/// Configuration and wire types have the fields that upstream gives them.
const FREE_OF_FIELDS: [&str; 2] = ["rubelet-config", "rubelet-wire"];

const EXCEPTIONS: &str = "xtask/shape-exceptions.txt";

/// What breaks a limit and is no exception, and exceptions that nothing needs.
pub(crate) fn check(metadata: &Metadata, root: &Path) -> Result<Vec<String>> {
    let mut found = BTreeMap::new();
    for package in metadata.workspace_packages() {
        let layer = package.metadata.pointer("/rubelet/layer");
        if layer.and_then(|layer| layer.as_str()) == Some("support") {
            continue;
        }
        let source = package
            .manifest_path
            .parent()
            .context("a manifest has a folder")?
            .join("src");
        let counts_fields = !FREE_OF_FIELDS.contains(&package.name.as_str());
        found.extend(excesses(
            source.as_std_path(),
            package.name.as_str(),
            counts_fields,
        )?);
    }
    let exceptions =
        fs::read_to_string(root.join(EXCEPTIONS)).with_context(|| format!("read {EXCEPTIONS}"))?;
    Ok(compare(&found, &exceptions))
}

/// Every excess by its name, with its text.
fn excesses(source: &Path, package: &str, counts_fields: bool) -> Result<BTreeMap<String, String>> {
    let mut files = Vec::new();
    collect_files(source, &mut files)?;
    files.sort();
    let mut shape = Shape::default();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let syntax = syn::parse_file(&text).with_context(|| format!("parse {}", file.display()))?;
        shape.file = file.strip_prefix(source)?.to_path_buf();
        shape.visit_file(&syntax);
    }
    Ok(shape.excesses(package, counts_fields))
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_test = name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs");
        if is_test {
            continue;
        }
        if path.is_dir() {
            collect_files(&path, files)?;
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn compare(found: &BTreeMap<String, String>, exceptions: &str) -> Vec<String> {
    let lines = exceptions.lines().map(str::trim);
    let known: BTreeSet<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let new = found
        .iter()
        .filter(|(name, _)| !known.contains(name.as_str()))
        .map(|(name, text)| format!("{name}: {text}"));
    let unneeded = known
        .iter()
        .filter(|name| !found.contains_key(**name))
        .map(|name| format!("{EXCEPTIONS}: {name} is within the limits by now; remove the line"));
    new.chain(unneeded).collect()
}

/// What the sources of one crate show.
#[derive(Default)]
struct Shape {
    /// The file in hand, relative to the crate's sources.
    file: PathBuf,
    structs: Vec<(String, PathBuf, usize)>,
    functions: Vec<(String, PathBuf, usize)>,
    /// Type and file of each inherent method that takes `&mut self`.
    mutations: BTreeSet<(String, PathBuf)>,
    type_in_hand: Option<String>,
}

impl Shape {
    fn excesses(&self, package: &str, counts_fields: bool) -> BTreeMap<String, String> {
        let wide = self
            .structs
            .iter()
            .filter(|(_, _, fields)| counts_fields && *fields > MAX_FIELDS);
        let wide = wide.map(|(name, file, fields)| {
            let text = format!("a struct of {fields} fields; {MAX_FIELDS} are allowed");
            (format!("fields {package} {} {name}", file.display()), text)
        });
        let long = self
            .functions
            .iter()
            .filter(|(_, _, lines)| *lines > MAX_FUNCTION_LINES);
        let long = long.map(|(name, file, lines)| {
            let text = format!(
                "a function of {lines} lines; {MAX_FUNCTION_LINES} are allowed, but for one flat match"
            );
            (format!("lines {package} {} {name}", file.display()), text)
        });
        let names: BTreeSet<&String> = self.mutations.iter().map(|(name, _)| name).collect();
        let shared = names
            .into_iter()
            .filter_map(|name| self.files_that_change(name))
            .map(|(name, files)| {
                let text = format!(
                    "methods with &mut self in {} files: {}",
                    files.len(),
                    files.join(", ")
                );
                (format!("files {package} {name}"), text)
            });
        wide.chain(long).chain(shared).collect()
    }

    /// The files that change a type, where they are more than one. A name that several structs of a crate have says nothing.
    fn files_that_change<'a>(&self, name: &'a str) -> Option<(&'a str, Vec<String>)> {
        let definitions = self.structs.iter().filter(|(one, _, _)| one == name).count();
        let files = self.mutations.iter().filter(|(one, _)| one == name);
        let files: Vec<String> = files.map(|(_, file)| file.display().to_string()).collect();
        (definitions == 1 && files.len() > 1).then_some((name, files))
    }

    fn function(&mut self, signature: &Signature, block: &Block) {
        let lines = block.span().end().line - signature.span().start().line + 1;
        if is_flat_match(block) {
            return;
        }
        let name = match &self.type_in_hand {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        self.functions.push((name, self.file.clone(), lines));
    }
}

impl<'ast> Visit<'ast> for Shape {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if !is_for_tests(&item.attrs) {
            self.structs
                .push((item.ident.to_string(), self.file.clone(), item.fields.len()));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, &item.block);
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let Some(owner) = name_of(&item.self_ty).filter(|_| !is_for_tests(&item.attrs)) else {
            return;
        };
        let before = self.type_in_hand.replace(owner.clone());
        for method in &item.items {
            let ImplItem::Fn(method) = method else { continue };
            self.function(&method.sig, &method.block);
            if item.trait_.is_none() && takes_mutable_self(&method.sig) {
                self.mutations.insert((owner.clone(), self.file.clone()));
            }
        }
        self.type_in_hand = before;
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let is_test = attribute.path().is_ident("test");
        is_test
            || is_cfg
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|path| path.is_ident("test"))
    })
}

fn name_of(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

fn takes_mutable_self(signature: &Signature) -> bool {
    let Some(FnArg::Receiver(receiver)) = signature.inputs.first() else {
        return false;
    };
    matches!(receiver.kind, ReceiverKind::Reference(_, _, Some(_)))
}

/// Whether a function is one `match`, perhaps behind a few bindings, whose arms are short.
fn is_flat_match(block: &Block) -> bool {
    const MAX_ARM_LINES: usize = 20;
    let Some(Stmt::Expr(Expr::Match(last), _)) = block.stmts.last() else {
        return false;
    };
    let lines = |span: proc_macro2::Span| span.end().line - span.start().line + 1;
    let before: usize = block.stmts[..block.stmts.len() - 1]
        .iter()
        .map(|stmt| lines(stmt.span()))
        .sum();
    before <= MAX_ARM_LINES && last.arms.iter().all(|arm| lines(arm.span()) <= MAX_ARM_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_kept() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/broken-shape/src");
        let found = excesses(&fixture, "broken", true).unwrap();
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "fields broken wide/mod.rs Wide",
                "files broken Wide",
                "lines broken lib.rs long"
            ]
        );
        assert!(
            excesses(&fixture, "broken", false).unwrap().len() == 2,
            "wire types are free of fields"
        );
    }

    #[test]
    fn exceptions_only_shrink() {
        let found = BTreeMap::from([("lines a lib.rs f".to_owned(), "too long".to_owned())]);
        assert_eq!(compare(&found, "# why\nlines a lib.rs f\n"), Vec::<String>::new());
        assert_eq!(compare(&found, ""), ["lines a lib.rs f: too long"]);
        let gone = compare(&BTreeMap::new(), "lines a lib.rs f\n");
        assert_eq!(
            gone,
            [format!(
                "{EXCEPTIONS}: lines a lib.rs f is within the limits by now; remove the line"
            )]
        );
    }
}
