//! A container that swaps a subPath for a symlink out of the volume, as fast as it can, while the subPath is bound.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rubelet_ports::volume_host::VolumeAction;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{LONG, Node, of, sub_path};

/// `make soak` takes a minute.
fn duration() -> Duration {
    let seconds = std::env::var("RUBELET_ATTACK_SECONDS").map_or(3, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Swaps two names again and again until `stop` is set.
struct Attacker {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Attacker {
    fn start(one: PathBuf, other: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, swaps) = (Arc::clone(&stop), Arc::clone(&swaps));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Self {
            stop,
            swaps,
            thread: Some(thread),
        }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[tokio::test]
async fn swapping_a_sub_path_leads_nowhere() {
    let node = Node::new("subpath-attacker");
    let volume = node.path("volume");
    let outside = node.path("outside");
    for directory in [volume.join("part/inner"), outside.join("inner")] {
        fs::create_dir_all(directory).unwrap();
    }
    for place in [outside.clone(), outside.join("inner")] {
        fs::write(place.join("secret"), "").unwrap();
    }
    symlink(&outside, volume.join("link")).unwrap();
    symlink("../outside", volume.join("other-link")).unwrap();
    let target = node.path("pods/u/t/0");
    let attackers = [
        Attacker::start(volume.join("part"), volume.join("link")),
        Attacker::start(volume.join("link"), volume.join("other-link")),
    ];
    let swaps = || -> u64 {
        let each = attackers.iter().map(|attacker| &attacker.swaps);
        each.map(|swaps| swaps.load(Ordering::Relaxed)).sum()
    };
    let end = Instant::now() + duration();
    let (mut bound, mut refused) = (0_u64, 0_u64);
    // A busy machine needs longer for as many.
    let is_enough = |bound, refused| swaps() > 1000 && bound > 10 && refused > 10;
    while Instant::now() < end || (!is_enough(bound, refused) && Instant::now() < end + LONG) {
        let number = bound + refused;
        let relative = match number % 4 {
            0 => "part".to_owned(),
            1 => "part/inner".to_owned(),
            2 => format!("part/new-{number}"),
            _ => format!("part/new-{number}/deep"),
        };
        let errors = node
            .execute("u", vec![of("v", sub_path(&volume, &relative, &target))])
            .await;
        if errors.is_empty() {
            bound += 1;
            assert!(
                !target.join("secret").exists(),
                "{relative} led out of the volume"
            );
        } else {
            refused += 1;
        }
        let unmount = VolumeAction::Unmount {
            target: target.clone(),
            lazy: false,
        };
        assert_eq!(node.execute("u", vec![of("v", unmount)]).await, []);
    }
    let (swaps, is_enough) = (swaps(), is_enough(bound, refused));
    drop(attackers);
    let mut found: Vec<_> = fs::read_dir(&outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    found.sort();
    assert_eq!(found, ["inner", "secret"], "nothing was made outside");
    assert_eq!(fs::read_dir(outside.join("inner")).unwrap().count(), 1);
    eprintln!("{swaps} swaps: {bound} times bound, {refused} times refused");
    assert!(is_enough, "{swaps} swaps, {bound} bound, {refused} refused");
}
