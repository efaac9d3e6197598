//! Scopes on their own: what is swept and what is not.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use rubelet_testbed::Scope;
use rubelet_testbed::scope::sweep;
use rubelet_testbed::wait::wait_for;

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_live_scope_is_not_swept_and_a_dropped_one_is_gone() -> Result<()> {
    check_life(Scope::new("live")?)?;
    check_life(Scope::in_memory("live")?)
}

fn check_life(scope: Scope) -> Result<()> {
    let file = scope.path("deep/file");
    fs::write(&file, "mine")?;
    sweep();
    ensure!(fs::read_to_string(&file)? == "mine");
    let dir = scope.dir().to_owned();
    drop(scope);
    ensure!(!dir.exists());
    Ok(())
}

/// A teardown that is killed itself leaves files, with the lock or without it; both are debris.
#[test]
fn the_rest_of_a_killed_teardown_is_swept() -> Result<()> {
    let scope = Scope::new("parent")?;
    let base = scope.dir().join("..");
    for (name, file) in [("without0", "c0/state"), ("withlock", "scope.lock")] {
        let debris = base.join(format!("{name}-{}", scope.id()));
        fs::create_dir_all(debris.join("c0"))?;
        fs::write(debris.join(file), "")?;
        // Another test process may be at it already.
        wait_for("the debris is gone", DEADLINE, || {
            sweep();
            ensure!(!debris.exists(), "{} is left", debris.display());
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn ports_are_never_given_twice() -> Result<()> {
    let (one, other) = (Scope::new("one")?, Scope::new("other")?);
    let mut ports = Vec::new();
    for _ in 0..20 {
        ports.extend([one.port()?, other.port()?]);
    }
    let count = ports.len();
    ports.sort_unstable();
    ports.dedup();
    ensure!(ports.len() == count, "{ports:?}");
    Ok(())
}
