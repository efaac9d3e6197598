//! The text of a look, made while it is sent.
//!
//! Owns the order, family by family with all rows of one together, and the size of the pieces: what a client has not taken is not made.

use std::sync::Arc;

use super::families::{Line, family};
use super::look::Look;
use crate::exposition::push_head;

/// A piece ends behind the row with which it becomes longer than this.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Families of the machine begin so.
const OF_MACHINE: &str = "machine_";

pub(crate) struct Pieces {
    look: Arc<Look>,
    family: usize,
    /// The row of the family that comes next.
    row: usize,
    /// The family's first lines are made.
    has_head: bool,
}

impl Pieces {
    pub(crate) fn new(look: Arc<Look>) -> Self {
        Self {
            look,
            family: 0,
            row: 0,
            has_head: false,
        }
    }

    fn next_family(&mut self) {
        self.family += 1;
        self.row = 0;
        self.has_head = false;
    }
}

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let look = Arc::clone(&self.look);
        let mut text = String::with_capacity(PIECE_BYTES + (4 << 10));
        while let Some(family) = family(self.family) {
            if text.len() >= PIECE_BYTES {
                break;
            }
            if look.is_of_machine && !family.name.starts_with(OF_MACHINE) {
                self.next_family();
                continue;
            }
            let begin = text.len();
            if !self.has_head {
                push_head(&mut text, family.name, family.kind, family.help);
            }
            let head = text.len();
            let row = look.rows.get(self.row);
            let is_last = if family.samples.are_of_node() {
                let mut line = Line::of_machine(&mut text, family, &look);
                family.samples.push_node(&look, &mut line);
                true
            } else if let Some(row) = row {
                let mut line = Line::of_row(&mut text, family, row);
                family.samples.push_row(row, &look, &mut line);
                self.row += 1;
                false
            } else {
                true
            };
            if text.len() > head {
                self.has_head = true;
            } else {
                // A family without samples has no head either.
                text.truncate(begin);
            }
            if is_last {
                self.next_family();
            }
        }
        (!text.is_empty()).then(|| text.into_bytes())
    }
}
