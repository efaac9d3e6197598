//! From a command line to `Settings`: the order in which the sources are read and laid over each other.
//!
//! flags → gates → rules for flags → `--config` → `--config-dir` → flags again, on top → rules → settings that are not supported yet.
//!
//! Owns that order and the gathering of all problems into one error. It opens no file itself: the caller gives `Files`.

mod files;
mod problem;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use files::Files;
pub use problem::{LoadError, LoadProblem};

use crate::flags::{self, CommandLine, FlagValue, KubeletFlags};
use crate::gates::FeatureGates;
use crate::kubelet_configuration::{
    self as kubelet, DecodeErrors, DropIn, HostFacts, KubeletConfiguration, Problem, apply_defaults,
    apply_eviction_hard_defaults, default_kubelet_configuration, legacy_kubelet_configuration,
};
use crate::pending;
use crate::rubelet_configuration::RubeletConfiguration;
use crate::settings::{Settings, Warning};
use crate::version::{self, VersionPrint};

/// What a command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Print this to standard output and exit with success.
    Print(String),
    /// Run with these settings.
    Run(Box<Settings>),
}

/// Reads a command line (without the program's name) and the files it names, and checks them for this machine.
pub fn load<S: AsRef<str>>(
    arguments: &[S],
    files: &dyn Files,
    host: HostFacts,
) -> Result<Invocation, LoadError> {
    let command_line = CommandLine::parse(arguments).map_err(LoadError::from_flags)?;
    if let Some(text) = print_request(&command_line) {
        return Ok(Invocation::Print(text));
    }
    let mut loading = Loading {
        flags: KubeletFlags::from_command_line(&command_line),
        command_line: &command_line,
        files,
        host,
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let settings = loading.settings();
    match settings {
        Some(settings) if loading.problems.is_empty() => Ok(Invocation::Run(Box::new(settings))),
        _ => Err(LoadError {
            problems: loading.problems,
        }),
    }
}

fn print_request(command_line: &CommandLine) -> Option<String> {
    if command_line.value("help") == Some(&FlagValue::Bool(true)) {
        return Some(flags::help());
    }
    let Some(FlagValue::Version(request)) = command_line.value("version") else {
        return None;
    };
    let reported = request.report.as_deref().unwrap_or(version::VERSION);
    match request.print {
        VersionPrint::Nothing => None,
        VersionPrint::Short => Some(version::short(reported) + "\n"),
        VersionPrint::Raw => Some(version::raw(reported) + "\n"),
    }
}

struct Loading<'a> {
    command_line: &'a CommandLine,
    flags: KubeletFlags,
    files: &'a dyn Files,
    host: HostFacts,
    problems: Vec<LoadProblem>,
    warnings: Vec<Warning>,
}

impl Loading<'_> {
    /// `None` when a source could not be read; what is wrong stands in `problems`.
    fn settings(&mut self) -> Option<Settings> {
        self.warn_of_deprecated_flags();
        self.check_flags();
        let from_flags = self.gates_of_flags();
        self.gates("--feature-gates", &from_flags);

        let rubelet = self.rubelet_configuration();
        let configuration = self.configuration(&from_flags)?;
        let gates = self.gates("featureGates", &configuration.feature_gates);
        self.warnings.extend(
            gates
                .warnings()
                .into_iter()
                .map(|message| Warning::new("featureGates", message)),
        );
        self.check(&configuration, &gates);
        Some(Settings {
            flags: self.flags.clone(),
            configuration,
            gates,
            rubelet: rubelet?,
            flag_texts: flags::texts(self.command_line),
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    fn warn_of_deprecated_flags(&mut self) {
        for (definition, _) in self.command_line.used() {
            if let Some(message) = definition.deprecation_warning() {
                self.warnings.push(Warning::new("", message));
            }
        }
    }

    fn check_flags(&mut self) {
        let mut problems = flags::node_label_problems(&self.flags.node_labels);
        if self.flags.exit_on_lock_contention && self.flags.lock_file.is_none() {
            problems.push(Problem::new(
                "--exit-on-lock-contention",
                "true",
                "needs --lock-file",
            ));
        }
        if !matches!(self.flags.cloud_provider.as_str(), "" | "external") {
            problems.push(Problem::new(
                "--cloud-provider",
                &self.flags.cloud_provider,
                "must be empty or external",
            ));
        }
        if self.flags.root_dir.as_os_str().is_empty() {
            problems.push(Problem::new("--root-dir", "", "must name a directory"));
        }
        self.problems
            .extend(problems.into_iter().map(LoadProblem::Setting));
    }

    fn gates_of_flags(&self) -> BTreeMap<String, bool> {
        match self.command_line.value("feature-gates") {
            Some(FlagValue::BoolMap(values)) => values.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// The gates with these values. Problems are kept, each once, and the rest is taken, so that more problems can be found.
    fn gates(&mut self, source: &'static str, values: &BTreeMap<String, bool>) -> FeatureGates {
        let problems = match FeatureGates::from_values(values) {
            Ok(gates) => return gates,
            Err(problems) => problems,
        };
        let mut usable = values.clone();
        for problem in problems {
            usable.remove(problem.gate_name());
            let known = self
                .problems
                .iter()
                .any(|other| matches!(other, LoadProblem::Gate { problem: other, .. } if *other == problem));
            if !known {
                self.problems.push(LoadProblem::Gate {
                    source_name: source,
                    problem,
                });
            }
        }
        FeatureGates::from_values(&usable).unwrap_or_default()
    }

    /// Defaults, file, drop-ins and flags, in this order.
    fn configuration(&mut self, gates_of_flags: &BTreeMap<String, bool>) -> Option<KubeletConfiguration> {
        let mut configuration = match self.flags.config.clone() {
            Some(file) => self.configuration_file(&file, gates_of_flags)?,
            None => {
                let mut configuration = legacy_kubelet_configuration(&FeatureGates::default());
                self.apply_flags(&mut configuration);
                configuration
            }
        };
        if let Some(directory) = self.flags.config_dir.clone() {
            configuration = self.drop_ins(&directory, &configuration, gates_of_flags)?;
        }
        if self.flags.config.is_some() || self.flags.config_dir.is_some() {
            self.apply_flags(&mut configuration);
        }
        Some(configuration)
    }

    /// Lays the flags over a configuration; of feature gates, those that no flag names stay.
    fn apply_flags(&mut self, configuration: &mut KubeletConfiguration) {
        let before = configuration.feature_gates.clone();
        let had_split_streams = [
            &configuration.logging.options.text,
            &configuration.logging.options.json,
        ]
        .iter()
        .any(|options| options.split_stream);
        let problems = flags::apply_to_configuration(self.command_line, configuration);
        self.problems
            .extend(problems.into_iter().map(LoadProblem::Setting));
        for (name, value) in before {
            configuration.feature_gates.entry(name).or_insert(value);
        }
        let options = &configuration.logging.options;
        if had_split_streams && !options.text.split_stream && !options.json.split_stream {
            self.warnings.push(Warning::new(
                "logging.options",
                "splitStream is read from the flags --log-text-split-stream and --log-json-split-stream only, so the file's value has no effect",
            ));
        }
    }

    fn configuration_file(
        &mut self,
        name: &Path,
        gates_of_flags: &BTreeMap<String, bool>,
    ) -> Option<KubeletConfiguration> {
        let (file, bytes) = self.read(name)?;
        let mut configuration = match kubelet::decode(&bytes, &file.to_string_lossy()) {
            Ok(decoded) => {
                self.note(&decoded.warnings);
                decoded.configuration
            }
            Err(errors) => self.refuse(errors)?,
        };
        let gates = self.gates_for_defaults(gates_of_flags, &configuration.feature_gates);
        apply_defaults(&mut configuration, &gates);
        let folder = file.parent().unwrap_or(Path::new("/")).to_string_lossy();
        kubelet::resolve_relative_paths(&mut configuration, &folder);
        apply_eviction_hard_defaults(&mut configuration);
        Some(configuration)
    }

    fn drop_ins(
        &mut self,
        directory: &Path,
        base: &KubeletConfiguration,
        gates_of_flags: &BTreeMap<String, bool>,
    ) -> Option<KubeletConfiguration> {
        // Not cleaned: a slash at the end makes a link to a directory count as one.
        let root = self
            .files
            .current_dir()
            .map(|current| current.join(directory))
            .map_err(|error| (directory.to_owned(), error));
        let names = match root.and_then(|root| files::drop_in_files(self.files, &root)) {
            Ok(names) => names,
            Err((file, error)) => {
                self.problems.push(LoadProblem::Unreadable {
                    file,
                    reason: error.to_string(),
                });
                return None;
            }
        };
        // All are read before giving up, so that every unreadable one is named.
        let contents: Vec<_> = names.iter().map(|name| self.read(name)).collect();
        let drop_ins: Vec<DropIn> = contents
            .into_iter()
            .map(|content| {
                content.map(|(file, bytes)| DropIn {
                    source_name: file.to_string_lossy().into_owned(),
                    bytes,
                })
            })
            .collect::<Option<_>>()?;
        let mut configuration = match kubelet::merge_drop_ins(base, &drop_ins) {
            Ok(merged) => {
                self.note(&merged.warnings);
                merged.configuration
            }
            Err(errors) => self.refuse(errors)?,
        };
        let gates = self.gates_for_defaults(gates_of_flags, &configuration.feature_gates);
        apply_defaults(&mut configuration, &gates);
        Some(configuration)
    }

    fn rubelet_configuration(&mut self) -> Option<RubeletConfiguration> {
        let Some(name) = self.flags.rubelet_config.clone() else {
            return Some(RubeletConfiguration::default());
        };
        let (file, bytes) = self.read(&name)?;
        match RubeletConfiguration::decode(&bytes) {
            Ok(configuration) => Some(configuration),
            Err(problems) => {
                let file = file.to_string_lossy().into_owned();
                self.problems
                    .extend(problems.into_iter().map(|problem| LoadProblem::InFile {
                        file: file.clone(),
                        problem,
                    }));
                None
            }
        }
    }

    /// The absolute name of a file and what is in it; an empty file is none.
    fn read(&mut self, name: &Path) -> Option<(PathBuf, Vec<u8>)> {
        let result = files::absolute(self.files, name)
            .and_then(|file| self.files.read(&file).map(|bytes| (file, bytes)));
        let reason = match result {
            Ok((_, bytes)) if bytes.is_empty() => "the file is empty".to_owned(),
            Ok(read) => return Some(read),
            Err(error) => error.to_string(),
        };
        self.problems.push(LoadProblem::Unreadable {
            file: name.to_owned(),
            reason,
        });
        None
    }

    /// Keeps what is wrong with a file, and gives what could be read of it: the rules are checked on that too.
    fn refuse(&mut self, errors: DecodeErrors) -> Option<KubeletConfiguration> {
        let readable = match &errors {
            DecodeErrors::Fields { readable, .. } => Some((**readable).clone()),
            DecodeErrors::Syntax { .. } | DecodeErrors::Kind { .. } | DecodeErrors::Duplicates { .. } => None,
        };
        self.problems.extend(LoadProblem::from_decoding(errors));
        readable
    }

    fn note(&mut self, warnings: &[kubelet::Warning]) {
        self.warnings.extend(
            warnings
                .iter()
                .map(|warning| Warning::new("", warning.to_string())),
        );
    }

    /// The rules for the whole, and what is not there yet.
    fn check(&mut self, configuration: &KubeletConfiguration, gates: &FeatureGates) {
        let mut problems = kubelet::validate(configuration, gates);
        problems.extend(kubelet::validate_on_host(configuration, self.host));
        let own_cgroup = &configuration.kubelet_cgroups;
        let reserved_cgroup = &configuration.kube_reserved_cgroup;
        if !own_cgroup.is_empty() && !reserved_cgroup.is_empty() && !own_cgroup.starts_with(reserved_cgroup) {
            self.warnings.push(Warning::new(
                "kubeletCgroups",
                "lies outside of kubeReservedCgroup, which is not supported",
            ));
        }
        if configuration.sync_frequency.as_nanos() <= 0 {
            problems.push(Problem::new(
                "syncFrequency",
                configuration.sync_frequency,
                "must be more than zero",
            ));
        }
        let findings = pending::find(&self.flags, configuration, &self.defaults(gates), gates);
        // A value that breaks a rule is reported once.
        let broken: BTreeSet<String> = problems.iter().map(|problem| problem.path.clone()).collect();
        problems.extend(
            findings
                .problems
                .into_iter()
                .filter(|problem| !broken.contains(&problem.path)),
        );
        // A field of the wrong type has a default in its place, which would be reported as if the user had set it.
        problems.retain(|problem| !self.problems.iter().any(|known| known.covers(&problem.path)));
        self.problems
            .extend(problems.into_iter().map(LoadProblem::Setting));
        self.warnings.extend(findings.warnings);
    }

    /// What would be in effect with nothing but the same choice of a file or none.
    fn defaults(&self, gates: &FeatureGates) -> KubeletConfiguration {
        if self.flags.config.is_none() {
            return legacy_kubelet_configuration(gates);
        }
        let mut defaults = default_kubelet_configuration(gates);
        apply_eviction_hard_defaults(&mut defaults);
        defaults
    }

    /// Defaults see the gates of the object itself over those of the flags; flags win only later.
    fn gates_for_defaults(
        &mut self,
        of_flags: &BTreeMap<String, bool>,
        of_object: &BTreeMap<String, bool>,
    ) -> FeatureGates {
        let mut values = of_flags.clone();
        values.extend(of_object.iter().map(|(name, value)| (name.clone(), *value)));
        self.gates("featureGates", &values)
    }
}
