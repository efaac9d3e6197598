//! The smaller objects inside a `KubeletConfiguration`. Shape only, like `types`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use rubelet_model::{GoDuration, Quantity};
use serde_json::Value;

use super::node::Node;
use super::schema::{Field, Walk, wire_struct};

wire_struct! {
    pub struct KubeletAuthentication {
        x509: KubeletX509Authentication => "x509" keep,
        webhook: KubeletWebhookAuthentication => "webhook" keep,
        anonymous: KubeletAnonymousAuthentication => "anonymous" keep,
    }
}

wire_struct! {
    pub struct KubeletX509Authentication {
        client_ca_file: String => "clientCAFile" omit,
    }
}

wire_struct! {
    pub struct KubeletWebhookAuthentication {
        enabled: Option<bool> => "enabled" omit,
        cache_ttl: GoDuration => "cacheTTL" omit,
    }
}

wire_struct! {
    pub struct KubeletAnonymousAuthentication {
        enabled: Option<bool> => "enabled" omit,
    }
}

wire_struct! {
    pub struct KubeletAuthorization {
        mode: String => "mode" omit,
        webhook: KubeletWebhookAuthorization => "webhook" keep,
    }
}

wire_struct! {
    pub struct KubeletWebhookAuthorization {
        cache_authorized_ttl: GoDuration => "cacheAuthorizedTTL" omit,
        cache_unauthorized_ttl: GoDuration => "cacheUnauthorizedTTL" omit,
    }
}

wire_struct! {
    pub struct MemorySwapConfiguration {
        swap_behavior: String => "swapBehavior" omit,
    }
}

wire_struct! {
    pub struct CrashLoopBackOffConfig {
        max_container_restart_period: Option<GoDuration> => "maxContainerRestartPeriod" omit,
    }
}

wire_struct! {
    pub struct ShutdownGracePeriodByPodPriority {
        priority: i32 => "priority" keep,
        shutdown_grace_period_seconds: i64 => "shutdownGracePeriodSeconds" keep,
    }
}

wire_struct! {
    pub struct MemoryReservation {
        numa_node: i32 => "numaNode" keep,
        limits: Option<BTreeMap<String, Quantity>> => "limits" keep,
    }
}

wire_struct! {
    pub struct TracingConfiguration {
        endpoint: Option<String> => "endpoint" omit,
        sampling_rate_per_million: Option<i32> => "samplingRatePerMillion" omit,
    }
}

wire_struct! {
    pub struct UserNamespaces {
        ids_per_pod: Option<i64> => "idsPerPod" omit,
    }
}

wire_struct! {
    pub struct Taint {
        key: String => "key" keep,
        value: String => "value" omit,
        effect: String => "effect" keep,
        time_added: Option<Timestamp> => "timeAdded" omit,
    }
}

/// An RFC 3339 instant, kept as text: the one place it may stand refuses it after reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timestamp(pub String);

impl Field for Timestamp {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        match node {
            Node::Text(text) if is_rfc3339(text) => self.0.clone_from(text),
            Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => {
                walk.refuse(node, "must be a time such as 2026-01-31T12:00:00Z");
            }
        }
    }

    fn to_json(&self) -> Value {
        self.0.as_str().into()
    }
}

fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shape = b"0000-00-00T00:00:00";
    let head_fits = bytes.len() > shape.len()
        && bytes.iter().zip(shape).all(|(byte, form)| {
            if *form == b'0' {
                byte.is_ascii_digit()
            } else {
                byte == form
            }
        });
    if !head_fits {
        return false;
    }
    let number = |from: usize, to: usize| {
        text.get(from..to)
            .and_then(|digits| digits.parse::<u32>().ok())
            .unwrap_or(u32::MAX)
    };
    let days = match number(5, 7) {
        2 => {
            let year = number(0, 4);
            if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) {
                29
            } else {
                28
            }
        }
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    let in_range = (1..=days).contains(&number(8, 10))
        && number(11, 13) < 24
        && number(14, 16) < 60
        && number(17, 19) < 60;
    let mut zone = &bytes[shape.len()..];
    if let Some((b'.' | b',', fraction)) = zone.split_first() {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return false;
        }
        zone = &fraction[digits..];
    }
    let zone_fits = zone == b"Z"
        || (zone.len() == 6
            && matches!(zone[0], b'+' | b'-')
            && zone[3] == b':'
            && [1, 2, 4, 5]
                .iter()
                .all(|position| zone[*position].is_ascii_digit()));
    in_range && zone_fits
}

/// Headers sent with the request for static pods. They may carry a token, so their values never show in messages.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StaticPodHeaders(pub BTreeMap<String, Vec<String>>);

impl fmt::Debug for StaticPodHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Deref for StaticPodHeaders {
    type Target = BTreeMap<String, Vec<String>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for StaticPodHeaders {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Field for StaticPodHeaders {
    fn read(&mut self, node: &Node, walk: &mut Walk) {
        walk.secret(|walk| self.0.read(node, walk));
    }

    fn to_json(&self) -> Value {
        self.0.to_json()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
