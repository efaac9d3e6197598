//! A command line of options (`--name value`, `--switch`) and words, taken one by one; what nobody took is a mistake.

/// What is left of the command line.
pub(crate) struct Arguments {
    left: Vec<String>,
}

impl Arguments {
    pub(crate) fn new(arguments: impl Iterator<Item = String>) -> Self {
        Self {
            left: arguments.collect(),
        }
    }

    /// The next argument if it is not an option; options that belong to words are taken before them.
    pub(crate) fn word(&mut self) -> Option<String> {
        let first = self.left.first()?;
        (!first.starts_with("--") || first == "--help").then(|| self.left.remove(0))
    }

    /// The next word, which must be there.
    pub(crate) fn required(&mut self, what: &str) -> Result<String, String> {
        self.word().ok_or_else(|| format!("{what} is missing"))
    }

    /// The value of an option, if it is given.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(at) = self.left.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if at + 1 >= self.left.len() {
            return Err(format!("{name} needs a value"));
        }
        self.left.remove(at);
        Ok(Some(self.left.remove(at)))
    }

    /// The value of an option that is a number.
    pub(crate) fn number<N: std::str::FromStr>(&mut self, name: &str) -> Result<Option<N>, String> {
        let value = self.value(name)?;
        value
            .map(|text| {
                text.parse()
                    .map_err(|_| format!("{name}: {text:?} is no such number"))
            })
            .transpose()
    }

    /// Whether a switch is given.
    pub(crate) fn switch(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|argument| argument == name);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Fails if something is left.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match self.left.first() {
            Some(argument) => Err(format!("what is {argument:?}?\n{}", crate::USAGE)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_words_and_switches_are_told_apart() {
        let mut arguments = Arguments::new("exit --after-ms 5 --quiet 3".split(' ').map(str::to_owned));
        assert_eq!(arguments.word().as_deref(), Some("exit"));
        assert_eq!(arguments.number::<u64>("--after-ms"), Ok(Some(5)));
        assert_eq!(arguments.number::<u64>("--before-ms"), Ok(None));
        assert!(arguments.finish().is_err());
        assert!(arguments.switch("--quiet"));
        assert!(!arguments.switch("--quiet"));
        assert_eq!(arguments.required("a code").as_deref(), Ok("3"));
        assert!(arguments.required("more").is_err());
        assert_eq!(arguments.finish(), Ok(()));
    }

    #[test]
    fn a_value_must_be_there_and_fit() {
        let mut arguments = Arguments::new("--port x --bind".split(' ').map(str::to_owned));
        assert!(arguments.value("--bind").is_err());
        assert!(arguments.number::<u16>("--port").is_err());
    }
}
