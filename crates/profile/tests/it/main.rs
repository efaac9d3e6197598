//! Profiles of the test itself, read as another program would read them.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these are tests of an adapter, which has no other edge"
)]

use std::hint::black_box;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use prost::Message as _;
use rubelet_ports::{CpuProfiler as _, ProfileError};
use rubelet_profile::CpuSampler;
use tokio::sync::Mutex;

const DEADLINE: Duration = Duration::from_secs(120);

/// There is one sampler per process, and these tests share theirs.
static ALONE: Mutex<()> = Mutex::const_new(());

/// What is looked at of a profile, by the numbers of its fields.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    texts: Vec<String>,
    #[prost(int64, tag = "12")]
    period_nanos: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

async fn profile(time: Duration) -> Profile {
    let zipped = CpuSampler.profile(time).await.unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(zipped.as_slice()).read_to_end(&mut bytes).unwrap();
    Profile::decode(bytes.as_slice()).unwrap()
}

#[inline(never)]
fn burn_until_told(told: &AtomicBool) {
    let mut number = 1_u64;
    while !told.load(Ordering::Relaxed) {
        number = black_box(number).wrapping_mul(31).rotate_left(7);
    }
    black_box(number);
}

#[tokio::test]
async fn a_profile_names_the_function_that_takes_the_time() {
    let _alone = ALONE.lock().await;
    static TOLD: AtomicBool = AtomicBool::new(false);
    let burner = std::thread::spawn(|| burn_until_told(&TOLD));
    let began = Instant::now();
    // On a busy machine the thread may get no time for a while.
    let profile = loop {
        let profile = profile(Duration::from_secs(1)).await;
        if profile.texts.iter().any(|text| text.ends_with("burn_until_told")) {
            break profile;
        }
        assert!(began.elapsed() < DEADLINE, "{:?}", profile.texts);
    };
    TOLD.store(true, Ordering::Relaxed);
    burner.join().unwrap();
    assert_eq!(profile.texts[0], "");
    for sample in &profile.samples {
        assert!(!sample.locations.is_empty());
        let [count, nanos] = sample.values[..] else {
            panic!("{sample:?}");
        };
        assert!(count > 0 && nanos == count * profile.period_nanos, "{sample:?}");
    }
    // The handler is no part of what it interrupts.
    let handler = profile.texts.iter().find(|text| text.ends_with("on_tick"));
    assert_eq!(handler, None);
}

#[tokio::test]
async fn there_is_one_at_a_time_and_one_that_is_given_up_makes_room() {
    let _alone = ALONE.lock().await;
    let sampler = CpuSampler;
    let mut first = sampler.profile(DEADLINE);
    tokio::select! {
        biased;
        _ = &mut first => panic!("it is not over yet"),
        () = std::future::ready(()) => {}
    }
    let second = sampler.profile(Duration::ZERO).await;
    assert_eq!(second, Err(ProfileError::InUse));
    drop(first);
    profile(Duration::ZERO).await;
}
