//! Every reader of foreign bytes, with the properties that hold for any input.
//!
//! A target takes any bytes, reads them as the program does and panics when a property is broken. `make fuzz` gives the targets
//! to libFuzzer (`fuzz/`); the tests of this crate run them on the kept corpus and on mutations of it. Nothing here may know a
//! target's corpus, or accept less than the program does.

mod targets;

/// One reader of foreign bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus below `fuzz/corpus` and of its program below `fuzz/fuzz_targets`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        /// All targets, by name.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: targets::$name }),*];
    };
}

targets!(
    api_object,
    cri_log,
    docker_config,
    env_file,
    manifest,
    mount_table,
    pull_record,
    spdy,
    subject,
    transcript,
    user_namespace_record,
    watch_line,
    websocket,
);

/// Runs the target of this name.
///
/// # Panics
/// When the target does not exist, or when `bytes` break one of its properties.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("there is no fuzz target {name}"));
    (target.run)(bytes);
}
