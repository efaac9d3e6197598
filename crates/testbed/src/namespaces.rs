//! The kernel's namespaces that a node's programs are started in.

use std::path::Path;
use std::process::Command;

/// Namespaces by the files that stand for them.
#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    options: Vec<String>,
}

impl Namespaces {
    /// A network namespace.
    #[must_use]
    pub fn with_network(self, file: &Path) -> Self {
        self.with("net", file)
    }

    /// A mount namespace.
    #[must_use]
    pub fn with_mounts(self, file: &Path) -> Self {
        self.with("mount", file)
    }

    fn with(mut self, kind: &str, file: &Path) -> Self {
        self.options.push(format!("--{kind}={}", file.display()));
        self
    }

    /// A command that runs a program with its arguments inside; its process id is the program's.
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .args(&self.options)
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args());
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_follows_the_namespaces() {
        let namespaces = Namespaces::default()
            .with_network(Path::new("/n"))
            .with_mounts(Path::new("/m"));
        let command = namespaces.enter(Command::new("ls").arg("-l"));
        let words: Vec<&str> = command.get_args().filter_map(|word| word.to_str()).collect();
        assert_eq!(words, ["--net=/n", "--mount=/m", "--", "ls", "-l"]);
    }
}
