//! A tree of files in memory, and what of it survives a power loss.
//!
//! Owns two trees: what programs see, and what is on the disk for sure. It knows no time and no faults.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rubelet_ports::{DirectoryEntry, FileError, FileErrorKind, FileKind};

use crate::dice::Dice;

const MAX_LINKS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File { content: Arc<Vec<u8>> },
    Link { target: PathBuf },
}

impl Node {
    pub(super) fn file(content: &[u8]) -> Self {
        Self::File {
            content: Arc::new(content.to_vec()),
        }
    }

    fn kind(&self) -> FileKind {
        match self {
            Self::Directory => FileKind::Directory,
            Self::File { .. } => FileKind::File,
            Self::Link { .. } => FileKind::Symlink,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
}

pub(super) fn failure(path: &Path, kind: FileErrorKind, message: &str) -> FileError {
    FileError {
        path: path.to_owned(),
        kind,
        message: message.to_owned(),
    }
}

fn not_found(path: &Path) -> FileError {
    failure(path, FileErrorKind::NotFound, "no such file or directory")
}

fn wrong_kind(path: &Path, message: &str) -> FileError {
    failure(path, FileErrorKind::WrongKind, message)
}

/// `/a/b/../c` is `/a/c`; trailing slashes mean nothing.
fn plain(path: &Path) -> Cow<'_, Path> {
    let text = path.as_os_str().as_encoded_bytes();
    let is_plain = text.len() > 1
        && text.starts_with(b"/")
        && !text.ends_with(b"/")
        && !text.windows(2).any(|pair| matches!(pair, [b'/', b'/' | b'.']));
    if is_plain {
        return Cow::Borrowed(path);
    }
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Cow::Owned(plain)
}

/// What lies below a directory. Paths are in order of their parts, so that it is one stretch.
fn below<'a>(
    nodes: &'a BTreeMap<PathBuf, Node>,
    directory: &'a Path,
) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
    nodes
        .range::<Path, _>((Bound::Excluded(directory), Bound::Unbounded))
        .take_while(move |(path, _)| path.starts_with(directory))
}

/// Removes a path with everything below it. The answer is whether there was anything.
fn cut_off(nodes: &mut BTreeMap<PathBuf, Node>, path: &Path) -> bool {
    let doomed: Vec<PathBuf> = below(nodes, path).map(|(path, _)| path.clone()).collect();
    for path in &doomed {
        nodes.remove(path);
    }
    nodes.remove(path).is_some() || !doomed.is_empty()
}

impl Tree {
    fn resolve<'a>(&'a self, path: &'a Path) -> Result<Cow<'a, Path>, FileError> {
        let mut at = plain(path);
        for _ in 0..MAX_LINKS {
            match self.live.get(&*at) {
                Some(Node::Link { target }) => {
                    at = match at.parent() {
                        Some(parent) => Cow::Owned(plain(&parent.join(target)).into_owned()),
                        None => plain(target),
                    };
                }
                Some(Node::Directory | Node::File { .. }) => return Ok(at),
                None if *at == *Path::new("/") => return Ok(at),
                None => return Err(not_found(path)),
            }
        }
        Err(failure(path, FileErrorKind::Other, "too many levels of links"))
    }

    pub(super) fn content(&self, path: &Path) -> Result<Arc<Vec<u8>>, FileError> {
        match self.live.get(&*self.resolve(path)?) {
            Some(Node::File { content }) => Ok(content.clone()),
            Some(Node::Directory) | None => Err(wrong_kind(path, "is a directory")),
            Some(Node::Link { .. }) => Err(not_found(path)),
        }
    }

    pub(super) fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        let directory = self.resolve(directory)?;
        if let Some(Node::File { .. }) = self.live.get(&*directory) {
            return Err(wrong_kind(&directory, "not a directory"));
        }
        Ok(below(&self.live, &directory)
            .filter(|(path, _)| path.parent() == Some(&directory))
            .filter_map(|(path, node)| {
                Some(DirectoryEntry {
                    name: path.file_name()?.to_str()?.to_owned(),
                    kind: node.kind(),
                })
            })
            .collect())
    }

    pub(super) fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        let path = self.resolve(path)?;
        Ok(self.live.get(&*path).map_or(FileKind::Directory, Node::kind))
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.resolve(path).is_ok()
    }

    fn parent_is_there(&self, path: &Path) -> Result<(), FileError> {
        match path.parent() {
            Some(parent) if !self.exists(parent) => Err(not_found(path)),
            Some(_) | None => Ok(()),
        }
    }

    /// Written through: the disk has it.
    pub(super) fn write(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        let path = plain(path);
        self.parent_is_there(&path)?;
        if let Some(Node::Directory) = self.live.get(&*path) {
            return Err(wrong_kind(&path, "is a directory"));
        }
        let node = Node::file(content);
        self.live.insert(path.clone().into_owned(), node.clone());
        self.durable.insert(path.into_owned(), node);
        Ok(())
    }

    /// Programs see it, the disk may not have it yet.
    pub(super) fn write_in_place(&mut self, path: &Path, content: &[u8]) -> Result<(), FileError> {
        let path = self.resolve(path).unwrap_or_else(|_| plain(path)).into_owned();
        self.parent_is_there(&path)?;
        if let Some(Node::Directory) = self.live.get(&path) {
            return Err(wrong_kind(&path, "is a directory"));
        }
        self.live.insert(path, Node::file(content));
        Ok(())
    }

    pub(super) fn create_directory(&mut self, path: &Path) -> Result<(), FileError> {
        let path = plain(path);
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        for ancestor in ancestors.into_iter().skip(1) {
            match self.live.get(ancestor) {
                Some(Node::File { .. }) => return Err(wrong_kind(ancestor, "not a directory")),
                Some(Node::Directory | Node::Link { .. }) => {}
                None => {
                    self.live.insert(ancestor.to_owned(), Node::Directory);
                    self.durable.insert(ancestor.to_owned(), Node::Directory);
                }
            }
        }
        Ok(())
    }

    pub(super) fn link(&mut self, target: &Path, link: &Path) -> Result<(), FileError> {
        let link = plain(link).into_owned();
        self.parent_is_there(&link)?;
        let target = target.to_owned();
        self.live.insert(link, Node::Link { target });
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> Result<bool, FileError> {
        let path = plain(path);
        if let Some(Node::Directory) = self.live.get(&*path) {
            return Err(wrong_kind(&path, "is a directory"));
        }
        Ok(self.live.remove(&*path).is_some())
    }

    pub(super) fn remove_tree(&mut self, path: &Path) -> bool {
        cut_off(&mut self.live, &plain(path))
    }

    /// Makes the removal of a path certain, as an administrator's `sync` would.
    pub(super) fn forget_durably(&mut self, path: &Path) {
        cut_off(&mut self.durable, &plain(path));
    }

    /// Each thing that was not written through is as it was on the disk, or as programs saw it, or torn.
    pub(super) fn lose_power(&mut self, dice: &mut Dice) {
        let mut paths: Vec<PathBuf> = self.live.keys().chain(self.durable.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            let (live, durable) = (self.live.get(&path), self.durable.get(&path));
            if live == durable {
                continue;
            }
            let survivor = match (dice.below(3), live) {
                (0, live) => live.cloned(),
                (1, Some(Node::File { content })) => Some(Node::file(&content[..content.len() / 2])),
                (_, _) => durable.cloned(),
            };
            // What lies in a directory that is gone is gone with it.
            let parent_gone = path.parent().is_some_and(|parent| !self.exists(parent));
            match survivor {
                Some(node) if !parent_gone => self.live.insert(path, node),
                Some(_) | None => self.live.remove(&path),
            };
        }
        self.durable = self.live.clone();
    }

    pub(super) fn paths_below<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        below(&self.live, directory).map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.create_directory(Path::new("/a/b")).unwrap();
        tree
    }

    #[test]
    fn only_what_was_written_through_survives_for_sure() {
        for seed in 0..50 {
            let mut tree = tree();
            tree.write(Path::new("/a/sure"), b"new").unwrap();
            tree.write_in_place(Path::new("/a/unsure"), b"12").unwrap();
            tree.lose_power(&mut Dice::new(seed, "power"));
            assert_eq!(*tree.content(Path::new("/a/sure")).unwrap(), b"new");
            match tree.content(Path::new("/a/unsure")) {
                Ok(content) => assert!([b"12".as_slice(), b"1"].contains(&content.as_slice())),
                Err(error) => assert!(error.is_not_found()),
            }
        }
    }

    #[test]
    fn links_lead_to_their_target() {
        let mut tree = tree();
        tree.write(Path::new("/a/file"), b"x").unwrap();
        tree.link(Path::new("/a/file"), Path::new("/a/b/link")).unwrap();
        assert_eq!(*tree.content(Path::new("/a/b/link")).unwrap(), b"x");
        assert_eq!(tree.kind(Path::new("/a/b/link")).unwrap(), FileKind::File);
        let listed = tree.list(Path::new("/a/b")).unwrap();
        assert_eq!(listed[0].kind, FileKind::Symlink);
        tree.remove_file(Path::new("/a/file")).unwrap();
        assert!(tree.content(Path::new("/a/b/link")).unwrap_err().is_not_found());
    }

    #[test]
    fn the_wrong_kind_is_refused() {
        let mut tree = tree();
        assert!(tree.content(Path::new("/a")).is_err());
        assert!(tree.write(Path::new("/a"), b"").is_err());
        assert!(
            tree.write(Path::new("/missing/x"), b"")
                .unwrap_err()
                .is_not_found()
        );
        assert!(tree.remove_file(Path::new("/a/b")).is_err());
        assert!(tree.remove_tree(Path::new("/a")));
        assert!(!tree.remove_tree(Path::new("/a")));
        assert!(tree.list(Path::new("/a")).unwrap_err().is_not_found());
    }
}
