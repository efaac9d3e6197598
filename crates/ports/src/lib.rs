//! Narrow, object-safe traits at the edges of the agent.
//!
//! Owns the shape of each edge and its errors; the adapters implement it, the actors and the program use it through
//! `Arc<dyn Trait>`. Every edge is cut in two: the **reading** half changes nothing on the node, the **writing** half may.
//! Whoever holds only reading halves cannot harm a pod, which is what a shadow run beside a live kubelet needs. A port must
//! not know any implementation of itself: no socket, no file, no executor.

pub mod image;
pub mod runtime;
pub mod runtime_error;

pub use image::{ImageReader, ImageWriter};
pub use runtime::{EventStream, RuntimeReader, RuntimeWriter};
pub use runtime_error::{RuntimeError, RuntimeErrorKind};
