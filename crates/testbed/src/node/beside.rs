//! One more kubelet on a node: both look after the same pods, so that what they show of them can be compared.

use std::fs;
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde_json::Value;

use super::ports::Ports;
use super::{CONFIGURATION, Kubelet, Node, write_configuration};
use crate::containerd::Containerd;
use crate::scope::Scope;

const OWN_CONFIGURATION: &str = "kubelet-beside.yaml";

impl Node {
    /// Starts another kubelet with the name, the folders and the configuration of this one, and ports of its own. It finds the
    /// containerd also where upstream's cAdvisor looks for one.
    ///
    /// Pods need UIDs in their manifests: without them each kubelet calls them by UIDs of its own and ends the other's.
    pub fn start_beside(&self, scope: &Scope, kubelet: Kubelet, containerd: &Containerd) -> Result<Self> {
        let ports = Ports::choose(scope, self.network.as_ref())?;
        let text = fs::read(self.dir.join(CONFIGURATION)).context("read the node's configuration")?;
        let mut configuration: Value =
            serde_json::from_slice(&text).context("read the node's configuration")?;
        ports.configure(&mut configuration);
        let file = self.dir.join(OWN_CONFIGURATION);
        write_configuration(&file, &configuration)?;
        let others = self
            .arguments
            .iter()
            .filter(|argument| !argument.starts_with("--config="));
        let mut arguments = vec![format!("--config={}", file.display())];
        arguments.extend(others.cloned());
        let mut beside = Self {
            name: self.name.clone(),
            dir: self.dir.clone(),
            log: self.log.with_file_name("kubelet-beside.log"),
            kubelet,
            arguments,
            network: self.network.clone(),
            containerd: Some(containerd.socket()),
            read_only: format!("{}:{}", ports.host, ports.read_only),
            healthz: format!("{}:{}", ports.host, ports.healthz),
            process: None,
            abandoned: Vec::new(),
            list: Mutex::default(),
        };
        beside.start_again()?;
        Ok(beside)
    }
}
