//! A node's certificates between edges in memory.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAddress;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rubelet_certificates::{
    BootstrapSigner, CertificateHandle, CertificatePorts, CertificateSink, ClientSettings, PemPair,
    ServingSettings, keep_client_certificate, keep_serving_certificate,
};
use rubelet_fakes::{Tasks, TokioClock};
use rubelet_model::Timestamp;
use rubelet_ports::api::SigningRequests;
use rubelet_ports::{Clock as _, Randomness};
use tokio::sync::watch;
use tokio::time::Instant;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::files::Files;
use crate::signer::Signer;

/// Nothing that a test waits for takes longer, on virtual time.
pub(crate) const DEADLINE: Duration = Duration::from_hours(24 * 30);
/// 1 January 2026.
const EPOCH: Timestamp = Timestamp::from_unix_seconds(1_767_225_600);

/// Valid from and until these times after the start.
pub(crate) fn set_validity(
    parameters: &mut CertificateParams,
    from: Duration,
    dated_back: Duration,
    to: Duration,
) {
    let start = rcgen::date_time_ymd(2026, 1, 1);
    parameters.not_before = start + from - dated_back;
    parameters.not_after = start + to;
}

/// Everything random is half of its limit.
struct Half;

impl Randomness for Half {
    fn number(&self) -> u64 {
        0
    }

    fn part_of(&self, limit: Duration) -> Duration {
        limit / 2
    }
}

/// Keeps what it is shown instead of serving it, but is as strict as the real ones.
#[derive(Clone)]
pub(crate) struct Sink {
    shown: Arc<watch::Sender<Vec<PemPair>>>,
    /// Whether it tells what it shows.
    tells: bool,
}

impl Sink {
    fn new(tells: bool) -> Self {
        Self {
            shown: Arc::new(watch::Sender::new(Vec::new())),
            tells,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.shown.borrow().len()
    }

    pub(crate) fn last(&self) -> PemPair {
        self.shown.borrow().last().cloned().expect("a pair is shown")
    }

    /// Waits until this many pairs were shown.
    pub(crate) async fn shows(&self, count: usize) {
        let mut shown = self.shown.subscribe();
        let enough = shown.wait_for(|shown| shown.len() >= count);
        let found = tokio::time::timeout(DEADLINE, enough).await;
        found.expect("a certificate in time").unwrap();
    }
}

impl CertificateSink for Sink {
    fn replace(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), String> {
        let der = leaf(chain_pem).ok_or("no certificate")?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| "a broken certificate")?;
        let keys = pem::parse_many(key_pem).map_err(|_| "broken PEM")?;
        let key = keys.into_iter().find(|block| block.tag() == "PRIVATE KEY");
        let key = KeyPair::try_from(key.ok_or("no key")?.contents()).map_err(|_| "a broken key")?;
        let point = certificate.public_key().subject_public_key.data.to_vec();
        if rcgen::PublicKeyData::der_bytes(&key) != point {
            return Err("the key of another certificate".to_owned());
        }
        self.shown.send_modify(|shown| {
            shown.push(PemPair {
                chain_pem: chain_pem.to_vec(),
                key_pem: key_pem.to_vec(),
            });
        });
        Ok(())
    }

    fn in_use(&self) -> Option<Vec<u8>> {
        self.shown
            .borrow()
            .last()
            .filter(|_| self.tells)
            .and_then(|pair| leaf(&pair.chain_pem))
    }
}

fn leaf(chain_pem: &[u8]) -> Option<Vec<u8>> {
    let blocks = pem::parse_many(chain_pem).ok()?;
    let block = blocks.into_iter().find(|block| block.tag() == "CERTIFICATE")?;
    Some(block.into_contents())
}

/// What outlives a restart of the node.
pub(crate) struct Bed {
    pub(crate) start: Instant,
    pub(crate) signer: Signer,
    pub(crate) files: Files,
}

/// A keeper whose tasks end with this value, as if the process were killed.
pub(crate) struct Running {
    pub(crate) handle: CertificateHandle,
    pub(crate) sink: Sink,
    spawner: Arc<Tasks>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.spawner.end();
    }
}

impl Running {
    /// Waits until the problem is so.
    pub(crate) async fn complains(&self, words: &str) {
        let mut handle = self.handle.clone();
        let end = Instant::now() + DEADLINE;
        while !handle.problem().is_some_and(|problem| problem.contains(words)) {
            let next = tokio::time::timeout_at(end, handle.changed()).await;
            assert!(next.is_ok(), "{words}: {:?}", handle.problem());
        }
    }
}

struct Bootstrap(Signer);

impl BootstrapSigner for Bootstrap {
    fn connect(&self) -> Result<Arc<dyn SigningRequests>, String> {
        Ok(Arc::new(self.0.door("bootstrap")))
    }
}

#[derive(Clone, Default)]
pub(crate) struct Client {
    pub(crate) rotate: bool,
    pub(crate) bootstrap: bool,
    pub(crate) inline: Option<PemPair>,
    /// What the kubeconfig's own files make the node show already.
    pub(crate) shown: Option<PemPair>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        Self {
            start,
            signer: Signer::new(start),
            files: Files::default(),
        }
    }

    fn ports(&self) -> (CertificatePorts, Arc<Tasks>) {
        let spawner = Arc::<Tasks>::default();
        let files = Arc::new(self.files.clone());
        let ports = CertificatePorts {
            clock: Arc::new(TokioClock::since(self.start, EPOCH)),
            spawner: spawner.clone(),
            randomness: Arc::new(Half),
            reader: files.clone(),
            writer: files,
        };
        (ports, spawner)
    }

    pub(crate) fn client(&self, client: Client) -> Running {
        let (ports, spawner) = self.ports();
        let settings = ClientSettings {
            node_name: "n".to_owned(),
            directory: "/pki".into(),
            rotate: client.rotate,
            inline: client.inline,
        };
        let bootstrap = client
            .bootstrap
            .then(|| Arc::new(Bootstrap(self.signer.clone())) as Arc<dyn BootstrapSigner>);
        let sink = Sink::new(true);
        if let Some(pair) = &client.shown {
            sink.replace(&pair.chain_pem, &pair.key_pem).unwrap();
        }
        let ordinary = Arc::new(self.signer.door("ordinary"));
        let handle = keep_client_certificate(ports, settings, ordinary, bootstrap, Arc::new(sink.clone()));
        Running {
            handle,
            sink,
            spawner,
        }
    }

    pub(crate) fn serving(&self, addresses: &watch::Sender<Vec<NodeAddress>>) -> Running {
        let (ports, spawner) = self.ports();
        let settings = ServingSettings {
            node_name: "n".to_owned(),
            directory: "/pki".into(),
            files: Some(("/own.crt".into(), "/own.key".into())),
            allow_dns_only: false,
        };
        let sink = Sink::new(false);
        let signer = Arc::new(self.signer.door("ordinary"));
        let handle = keep_serving_certificate(
            ports,
            settings,
            signer,
            addresses.subscribe(),
            Arc::new(sink.clone()),
        );
        Running {
            handle,
            sink,
            spawner,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        TokioClock::since(self.start, EPOCH).now()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Lets time pass; whatever is due meanwhile happens.
    pub(crate) async fn pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A pair that another authority made, valid from the start until then.
pub(crate) fn foreign_pair(common_name: &str, organization: &str, until: Duration) -> PemPair {
    pair_of(common_name, organization, Duration::ZERO, until)
}

fn pair_of(common_name: &str, organization: &str, from: Duration, until: Duration) -> PemPair {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    set_validity(&mut parameters, from, Duration::ZERO, until);
    let key = KeyPair::generate().unwrap();
    PemPair {
        chain_pem: parameters.self_signed(&key).unwrap().pem().into_bytes(),
        key_pem: key.serialize_pem().into_bytes(),
    }
}

/// One of the node's own.
pub(crate) fn node_pair(until: Duration) -> PemPair {
    foreign_pair("system:node:n", "system:nodes", until)
}

/// One of the node's own that is valid from then on.
pub(crate) fn node_pair_from(from: Duration, until: Duration) -> PemPair {
    pair_of("system:node:n", "system:nodes", from, until)
}

/// Both in one text.
pub(crate) fn one_text(pair: &PemPair) -> Vec<u8> {
    [pair.chain_pem.as_slice(), pair.key_pem.as_slice()].concat()
}
