//! The program that test images carry: it answers requests and behaves, well or badly, as a test asks it to.
//!
//! It is linked statically, so that it runs in an image that holds nothing else, and small, because every pod's pause process
//! is this program too.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test program at the edge: it is all clocks, files and sockets"
)]

mod arguments;
mod files;
mod health;
mod http;
mod memory;
mod pause;
mod serve;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;

const USAGE: &str = "\
usage: server [serve] [--http PORT] [--tcp PORT] [--grpc PORT] [--doors COUNT] [--bind ADDRESS] [--not-ready] [--not-live]
                      [--on-term exit|ignore] [--term-code CODE] [--term-delay-ms MS]
       server exit CODE [--after-ms MS] [--message TEXT]
       server memory BYTES [--step-bytes BYTES] [--then exit|hold]
       server file read|write|stat|list PATH [CONTENT]
       server env [NAME]
       server pause
serve without a port serves http on 8080.";

/// What a command ends with: an exit code, or a mistake in its use or its work.
type Outcome = Result<u8, String>;

fn main() -> ExitCode {
    let mut arguments = Arguments::new(std::env::args().skip(1));
    match run(&mut arguments) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(64)
        }
    }
}

fn run(arguments: &mut Arguments) -> Outcome {
    let command = arguments.word().unwrap_or_else(|| "serve".to_owned());
    match command.as_str() {
        "serve" => serve::run(arguments),
        "exit" => exit(arguments),
        "memory" => memory::run(arguments),
        "file" => files::run(arguments),
        "env" => env(arguments),
        "pause" => pause::run(arguments),
        "help" | "--help" => {
            println!("{USAGE}");
            Ok(0)
        }
        other => Err(format!("no command {other:?}\n{USAGE}")),
    }
}

fn exit(arguments: &mut Arguments) -> Outcome {
    let after_ms = arguments.number("--after-ms")?.unwrap_or(0);
    let message = arguments.value("--message")?;
    let code = arguments.required("an exit code")?;
    let code: u8 = code.parse().map_err(|_| format!("{code:?} is no exit code"))?;
    arguments.finish()?;
    std::thread::sleep(Duration::from_millis(after_ms));
    if let Some(message) = message {
        println!("{message}");
    }
    Ok(code)
}

fn env(arguments: &mut Arguments) -> Outcome {
    let name = arguments.word();
    arguments.finish()?;
    match name {
        Some(name) => match std::env::var(&name) {
            Ok(value) => println!("{value}"),
            Err(_) => return Ok(1),
        },
        None => print!("{}", environment()),
    }
    Ok(0)
}

/// All variables, sorted, one a line.
fn environment() -> String {
    let mut variables: Vec<String> = std::env::vars_os()
        .map(|(name, value)| format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy()))
        .collect();
    variables.sort();
    variables.concat()
}

/// The runtime of the commands that wait for more than one thing.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("start: {error}"))
}
