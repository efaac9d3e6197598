//! The logging part of the configuration, shared by all Kubernetes components. Shape and defaults.

use rubelet_model::{GoDuration, Quantity};
use serde_json::Value;

use super::node::Node;
use super::schema::{Field, Walk, wire_struct};

wire_struct! {
    pub struct LoggingConfiguration {
        /// `text` or `json`
        format: String => "format" omit,
        flush_frequency: FlushFrequency => "flushFrequency" keep,
        verbosity: u32 => "verbosity" keep,
        vmodule: Vec<VModuleItem> => "vmodule" omit,
        options: FormatOptions => "options" omit,
    }
}

wire_struct! {
    pub struct VModuleItem {
        file_pattern: String => "filePattern" keep,
        verbosity: u32 => "verbosity" keep,
    }
}

wire_struct! {
    pub struct FormatOptions {
        text: OutputRoutingOptions => "text" omit,
        json: OutputRoutingOptions => "json" omit,
    }
}

wire_struct! {
    pub struct OutputRoutingOptions {
        split_stream: bool => "splitStream" omit,
        info_buffer_size: Quantity => "infoBufferSize" omit,
    }
}

/// A duration that older files write as a number of nanoseconds; it is written back the way it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushFrequency {
    pub duration: GoDuration,
    pub as_text: bool,
}

impl Field for FlushFrequency {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Null => self.as_text = false,
            Node::Number(number) => match number.as_i64() {
                Some(nanos) => {
                    *self = Self {
                        duration: GoDuration::from_nanos(nanos),
                        as_text: false,
                    }
                }
                None => walk.refuse(
                    node,
                    "must be a duration such as 5s, or a whole number of nanoseconds",
                ),
            },
            Node::Text(_) => {
                self.as_text = true;
                self.duration.read(node, walk);
            }
            Node::Bool(_) | Node::List(_) | Node::Map(_) => {
                walk.refuse(
                    node,
                    "must be a duration such as 5s, or a whole number of nanoseconds",
                );
            }
        }
    }

    fn to_json(&self) -> Value {
        if self.as_text {
            self.duration.to_json()
        } else {
            self.duration.as_nanos().into()
        }
    }
}

pub const DEFAULT_FLUSH_FREQUENCY: GoDuration = GoDuration::from_secs(5);

impl LoggingConfiguration {
    pub(crate) fn apply_defaults(&mut self) {
        if self.format.is_empty() {
            "text".clone_into(&mut self.format);
        }
        if self.flush_frequency.duration.is_zero() {
            self.flush_frequency = FlushFrequency {
                duration: DEFAULT_FLUSH_FREQUENCY,
                as_text: true,
            };
        }
    }
}
