//! Which differences between the pages of both kubelets are known, and how far figures may be apart: `differences.txt`.

use anyhow::{Context, Result, bail};

use super::figures::{Content, Figure, Figures, Rows};

/// One line of the file.
struct Rule {
    page: &'static str,
    name: Name,
    verdict: Verdict,
}

/// What a rule is about.
struct Name {
    /// A family or a field; a star at its end or its beginning stands for anything.
    kind: &'static str,
    /// Words that all have to be in the series or in the way to the field.
    words: Vec<&'static str>,
}

enum Verdict {
    /// One side alone has it.
    On(&'static str),
    /// A family has another type, other labels, or times where the other has none.
    Differs,
    Near {
        rows: Option<Rows>,
        absolute: f64,
        relative: f64,
    },
}

pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn read() -> Result<Self> {
        let lines = include_str!("differences.txt").lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rules = lines.map(|line| rule(line).with_context(|| line.to_owned()));
        rules.collect::<Result<_>>().map(Self)
    }

    /// Everything in which one side of a page is not as the other, a line each.
    pub(super) fn differences(&self, page: &str, ours: &Figures, theirs: &Figures) -> Vec<String> {
        let one_sided = |side: &'static str, these: &Figures, those: &Figures| -> Vec<String> {
            let missing = these.iter().filter(|(key, _)| !those.contains_key(*key));
            let unknown = missing.filter(|(key, figure)| {
                let mut rules = self.about(page, figure, key);
                !rules.any(|rule| matches!(rule.verdict, Verdict::On(known) if known == side))
            });
            unknown
                .map(|(key, figure)| format!("{side} {page} {key} {:?}", figure.content))
                .collect()
        };
        let mut found = one_sided("rubelet", ours, theirs);
        found.extend(one_sided("upstream", theirs, ours));
        let both = ours
            .iter()
            .filter_map(|(key, ours)| Some((key, ours, theirs.get(key)?)));
        let apart = both.filter(|(key, ours, theirs)| !self.are_near(page, key, ours, theirs));
        found.extend(apart.map(|(key, ours, theirs)| {
            format!(
                "apart {page} {key} rubelet {:?} upstream {:?}",
                ours.content, theirs.content
            )
        }));
        found
    }

    fn are_near(&self, page: &str, key: &str, ours: &Figure, theirs: &Figure) -> bool {
        if ours.content == theirs.content {
            return true;
        }
        self.about(page, ours, key)
            .any(|rule| match (&rule.verdict, &ours.content, &theirs.content) {
                (
                    Verdict::Near {
                        rows,
                        absolute,
                        relative,
                    },
                    Content::Number(ours_is),
                    Content::Number(theirs_is),
                ) => {
                    let most = absolute + relative * ours_is.abs().max(theirs_is.abs());
                    rows.is_none_or(|rows| rows == ours.rows) && (ours_is - theirs_is).abs() <= most
                }
                (Verdict::Differs, _, _) => true,
                (Verdict::On(_) | Verdict::Near { .. }, _, _) => false,
            })
    }

    fn about<'a>(
        &'a self,
        page: &'a str,
        figure: &'a Figure,
        key: &'a str,
    ) -> impl Iterator<Item = &'a Rule> {
        let page = page.split('?').next().unwrap_or_default();
        self.0
            .iter()
            .filter(move |rule| rule.page == page && rule.name.is_of(&figure.kind, key))
    }
}

impl Name {
    fn is_of(&self, kind: &str, key: &str) -> bool {
        let is_kind = match (self.kind.strip_suffix('*'), self.kind.strip_prefix('*')) {
            (Some(begin), _) => kind.starts_with(begin),
            (None, Some(end)) => kind.ends_with(end),
            (None, None) => kind == self.kind,
        };
        is_kind && self.words.iter().all(|word| key.contains(word))
    }
}

/// `<verdict> <page> <name>[{<word>&…}] [<rows> <absolute> <relative>] <reason>`
fn rule(line: &'static str) -> Result<Rule> {
    let mut words = line.split_whitespace();
    let mut word = || words.next().context("a word is missing");
    let (verdict, page, name) = (word()?, word()?, word()?);
    let name = match name.split_once('{') {
        Some((kind, rest)) => Name {
            kind,
            words: rest.trim_end_matches('}').split('&').collect(),
        },
        None => Name {
            kind: name,
            words: Vec::new(),
        },
    };
    let verdict = match verdict {
        "rubelet" | "upstream" => Verdict::On(verdict),
        "differs" => Verdict::Differs,
        "near" => Verdict::Near {
            rows: match word()? {
                "pods" => Some(Rows::Pods),
                "node" => Some(Rows::Node),
                "all" => None,
                other => bail!("{other} are no rows"),
            },
            absolute: word()?.parse()?,
            relative: word()?.parse()?,
        },
        other => bail!("{other} is no verdict"),
    };
    word().context("no reason")?;
    Ok(Rule { page, name, verdict })
}
