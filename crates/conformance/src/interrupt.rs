//! A run that is interrupted cleans up before it ends: the first SIGINT or SIGTERM is a wish, the second ends the program.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

static ASKED: AtomicBool = AtomicBool::new(false);
static WATCH: LazyLock<Result<(), String>> =
    LazyLock::new(|| watch().map_err(|problem| format!("{problem:#}")));
/// What a shell reports for a program that SIGINT ended.
const EXIT_CODE: i32 = 130;

/// Whether somebody asked for the end since the first call of this function.
pub(super) fn asked() -> Result<bool> {
    LazyLock::force(&WATCH).clone().map_err(anyhow::Error::msg)?;
    Ok(ASKED.load(Ordering::Relaxed))
}

fn watch() -> Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime for signals")?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            either(&mut interrupt, &mut terminate).await;
            eprintln!("conformance: interrupted; cleaning up");
            ASKED.store(true, Ordering::Relaxed);
            either(&mut interrupt, &mut terminate).await;
            std::process::exit(EXIT_CODE);
        });
    });
    Ok(())
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    // Cancel-safe: a signal that comes in between stays pending in its stream.
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
