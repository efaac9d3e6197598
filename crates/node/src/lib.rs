//! The node itself, beside its pods: what other programs on the machine find there.
//!
//! Owns the helper chains of the packet filter. It must not know the program that changes the filter: that comes through a
//! port.

pub mod packet_filter;
