//! Resources of generated pods that change while they run.
//!
//! Owns the sizes. A simulated process uses a little memory, and the node has a lot: the smallest size is below the one, the largest
//! above the other.

use serde_json::{Value, json};

use crate::dice::Dice;

/// Resources of one container. It requests no CPU, so that the room for other pods stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceShape {
    pub memory_mib: u64,
    pub cpu_millis: u64,
}

impl ResourceShape {
    /// Of a pod that begins.
    #[must_use]
    pub fn first(dice: &mut Dice) -> Self {
        Self {
            memory_mib: *dice.pick(&[32, 64, 128]),
            cpu_millis: *dice.pick(&[100, 500]),
        }
    }

    #[must_use]
    pub fn roll(dice: &mut Dice) -> Self {
        Self {
            // Below what is used, and more than the node has.
            memory_mib: *dice.pick(&[8, 32, 64, 64, 128, 256, 1 << 20]),
            cpu_millis: *dice.pick(&[100, 200, 500, 1000]),
        }
    }

    #[must_use]
    pub fn json(self) -> Value {
        // As the API server has them: in the largest unit that fits.
        let memory = match self.memory_mib {
            mib if mib.is_multiple_of(1 << 20) => format!("{}Ti", mib >> 20),
            mib => format!("{mib}Mi"),
        };
        let cpu = match self.cpu_millis {
            millis if millis.is_multiple_of(1000) => (millis / 1000).to_string(),
            millis => format!("{millis}m"),
        };
        json!({
            "requests": {"cpu": "0", "memory": memory},
            "limits": {"cpu": cpu, "memory": memory},
        })
    }
}
