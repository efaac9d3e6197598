//! The loop that renews one certificate.
//!
//! Owns which certificate is in use, when it is due, and the pauses between tries. `plan` decides what to do next, `signing` requests
//! a certificate, `store` keeps it on disk.

use std::sync::Arc;
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_ports::api::SigningRequests;
use rubelet_ports::{Clock, FileError, Moment};
use tokio::sync::watch;

use crate::facts::CertificateFacts;
use crate::figures::{CertificateHandle, Figures};
use crate::kept_key::KeptKey;
use crate::plan::{Next, Reason, Situation, plan, retry_pause, rotation_deadline, spelled};
use crate::signing::{Issuer, RequestFailure};
use crate::store::{Store, Stored};
use crate::wanted::{Purpose, Wanted, WantedSource};
use crate::{BootstrapSigner, CertificatePorts, CertificateSink, PemPair};
use rubelet_ports::LogThrottle;

/// Files are looked at this often while all is well, and this often while there is no valid certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
const LOOK_INTERVAL_WITHOUT: Duration = Duration::from_secs(10);

pub(crate) struct RenewerParts {
    pub(crate) store: Store,
    pub(crate) wanted: WantedSource,
    pub(crate) rotate: bool,
    pub(crate) inline: Option<PemPair>,
    pub(crate) ordinary: Arc<dyn SigningRequests>,
    pub(crate) bootstrap: Option<Arc<dyn BootstrapSigner>>,
    pub(crate) sink: Arc<dyn CertificateSink>,
}

pub(crate) struct Renewer {
    ports: CertificatePorts,
    purpose: Purpose,
    store: Store,
    wanted: WantedSource,
    rotates: bool,
    issuer: Issuer,
    sink: Arc<dyn CertificateSink>,
    figures: watch::Sender<Figures>,
    /// What was handed to the sink last, or found expired in the files.
    held: Option<CertificateFacts>,
    /// The pair as the files were seen last.
    seen: Option<Stored>,
    /// In use, but the files could not be written.
    unstored: Option<PemPair>,
    /// Of one certificate.
    deadline: Option<(CertificateFacts, Timestamp)>,
    issued_for: Option<Wanted>,
    inline: Option<PemPair>,
    is_inline: bool,
    failures: u32,
    retry_at: Option<Moment>,
    throttle: LogThrottle,
}

impl Renewer {
    pub(crate) fn start(ports: CertificatePorts, parts: RenewerParts, purpose: Purpose) -> CertificateHandle {
        let (figures, seen) = watch::channel(Figures::default());
        let spawner = ports.spawner.clone();
        let renewer = Self {
            issuer: Issuer {
                clock: ports.clock.clone(),
                ordinary: parts.ordinary,
                bootstrap: parts.bootstrap,
                kept_key: KeptKey::new(&ports, parts.store.directory()),
            },
            store: parts.store,
            wanted: parts.wanted,
            rotates: parts.rotate,
            sink: parts.sink,
            figures,
            held: None,
            seen: None,
            unstored: None,
            deadline: None,
            issued_for: None,
            inline: parts.inline,
            is_inline: false,
            failures: 0,
            retry_at: None,
            throttle: LogThrottle::default(),
            purpose,
            ports,
        };
        spawner.spawn(purpose.name(), Box::pin(renewer.run()));
        CertificateHandle { figures: seen }
    }

    async fn run(mut self) {
        loop {
            self.store_again().await;
            self.look_at_files().await;
            self.take_inline().await;
            let in_use = self.in_use();
            let expiration = in_use.as_ref().map(|facts| facts.not_after);
            self.figures.send_if_modified(|figures| {
                let is_new = figures.expiration != expiration;
                figures.expiration = expiration;
                is_new
            });
            let Some(wanted) = self.wanted.wanted() else {
                self.pause(LOOK_INTERVAL, None).await;
                continue;
            };
            let is_valid = in_use.as_ref().is_some_and(|facts| !facts.is_expired(self.now()));
            let pause = match self.plan(&wanted, in_use.as_ref()) {
                Next::Request(reason) => match self.until_retry() {
                    Some(pause) => pause,
                    None => {
                        self.request(&reason, &wanted, in_use.as_ref()).await;
                        continue;
                    }
                },
                Next::Wait(pause) => {
                    self.well();
                    pause
                }
                Next::Helpless(reason) => {
                    self.report_problem(&helpless(self.purpose, &reason));
                    LOOK_INTERVAL_WITHOUT
                }
            };
            let look = if is_valid {
                LOOK_INTERVAL
            } else {
                LOOK_INTERVAL_WITHOUT
            };
            self.pause(look.min(pause), Some(&wanted)).await;
        }
    }

    fn now(&self) -> Timestamp {
        self.ports.clock.now()
    }

    fn until_retry(&self) -> Option<Duration> {
        let left = self.retry_at?.since(self.ports.clock.moment());
        (!left.is_zero()).then_some(left)
    }

    /// The certificate in use. Another part of the program may have replaced it, such as the reader of the kubeconfig's files.
    fn in_use(&self) -> Option<CertificateFacts> {
        let shown = self.sink.in_use();
        let shown = shown.and_then(|der| CertificateFacts::of_der(&der).ok());
        shown.or_else(|| self.held.clone())
    }

    fn plan(&mut self, wanted: &Wanted, in_use: Option<&CertificateFacts>) -> Next {
        let deadline = in_use.map(|facts| match &self.deadline {
            Some((of, deadline)) if of == facts => *deadline,
            _ => self.set_deadline(facts, None),
        });
        plan(&Situation {
            now: self.now(),
            wanted,
            in_use,
            deadline,
            issued_for: self.issued_for.as_ref(),
            is_inline: self.is_inline,
            rotates: self.rotates,
            has_bootstrap: self.issuer.bootstrap.is_some(),
        })
    }

    /// Drawn once for each certificate.
    fn set_deadline(&mut self, facts: &CertificateFacts, issued_at: Option<Timestamp>) -> Timestamp {
        let deadline = rotation_deadline(facts, issued_at, self.ports.randomness.as_ref());
        if self.rotates {
            tracing::info!(
                certificate = self.purpose.name(),
                expires_at = spelled(facts.not_after),
                deadline = spelled(deadline),
                "The certificate will be rotated"
            );
        }
        self.deadline = Some((facts.clone(), deadline));
        deadline
    }

    async fn pause(&mut self, limit: Duration, known: Option<&Wanted>) {
        let sleep = self.ports.clock.sleep(limit);
        tokio::select! {
            biased;
            // Cancel-safe: what is wanted is read again after every pause.
            () = self.wanted.changed(known) => {
                self.failures = 0;
                self.retry_at = None;
            }
            () = sleep => {}
        }
    }

    /// A certificate that was in the kubeconfig itself becomes the first of ours, where there is no better one.
    async fn take_inline(&mut self) {
        let Some(pair) = self.inline.take() else { return };
        if self
            .held
            .as_ref()
            .is_some_and(|facts| !facts.is_expired(self.now()))
        {
            return;
        }
        let taken = CertificateFacts::of_pem(&pair.chain_pem).map_err(|error| error.to_string());
        let taken = taken.and_then(|facts| self.sink.replace(&pair.chain_pem, &pair.key_pem).map(|()| facts));
        match taken {
            Ok(facts) => {
                self.held = Some(facts);
                self.is_inline = true;
                self.unstored = Some(pair);
                self.store_again().await;
            }
            Err(problem) => {
                self.report_problem(&format!("the kubeconfig's certificate cannot be used: {problem}"));
            }
        }
    }

    /// Takes a certificate from the files that was not seen before: put there by another program, or present at start-up.
    async fn look_at_files(&mut self) {
        let now = self.now();
        let is_valid = self.in_use().is_some_and(|facts| !facts.is_expired(now));
        // Without rotation the kubeconfig names the files, and the API server's client reads them itself.
        if self.unstored.is_some() || (is_valid && !self.rotates) {
            return;
        }
        let found = match self.store.read().await {
            Ok(found) => found,
            Err(error) => {
                return self.report_problem(&format!("the {} cannot be read: {error}", self.purpose.name()));
            }
        };
        let is_known = self.seen == found;
        self.seen.clone_from(&found);
        let Some(found) = found else { return };
        if is_known && !self.is_pushed_out(&found, now) {
            return;
        }
        let facts = CertificateFacts::of_pem(&found.pair.chain_pem).map_err(|error| error.to_string());
        let taken = facts.and_then(|facts| {
            if !facts.is_expired(now) {
                self.sink.replace(&found.pair.chain_pem, &found.pair.key_pem)?;
            }
            Ok(facts)
        });
        match taken {
            Ok(facts) => {
                tracing::info!(
                    certificate = self.purpose.name(),
                    path = %found.path.display(),
                    expires_at = spelled(facts.not_after),
                    "A certificate was found"
                );
                (self.failures, self.retry_at, self.is_inline) = (0, None, false);
                if !is_known {
                    self.issued_for = None;
                }
                self.held = Some(facts);
            }
            Err(problem) => self.set_aside(&found, &problem).await,
        }
    }

    /// Whether the certificate in use is worse than the stored one: a file that the kubeconfig names may be rewritten with its old
    /// content. A certificate that was issued later than the stored one was put there on purpose and stays.
    fn is_pushed_out(&mut self, stored: &Stored, now: Timestamp) -> bool {
        let stored = CertificateFacts::of_pem(&stored.pair.chain_pem);
        let (Ok(stored), Some(shown)) = (stored, self.in_use()) else {
            return false;
        };
        let wanted = self.wanted.wanted();
        let lacks = |facts: &CertificateFacts| {
            let wanted = wanted.as_ref();
            wanted.is_some_and(|wanted| wanted.lacking(facts).is_some())
        };
        let is_worse = shown.is_expired(now)
            || shown.not_before < stored.not_before
            || (lacks(&shown) && !lacks(&stored));
        shown != stored && !stored.is_expired(now) && is_worse
    }

    async fn set_aside(&mut self, found: &Stored, problem: &str) {
        let path = found.path.display();
        let unusable = format!("{path} cannot be used: {problem}");
        if !found.is_ours {
            return self.report_problem(&unusable);
        }
        self.seen = None;
        match self.store.set_aside(found).await {
            Ok(kept) => self.report_problem(&format!("{unusable}; it was set aside as {}", kept.display())),
            Err(error) => self.report_problem(&format!("{unusable}; it cannot be set aside: {error}")),
        }
    }

    async fn request(&mut self, reason: &Reason, wanted: &Wanted, in_use: Option<&CertificateFacts>) {
        let now = self.now();
        let has_valid = in_use.is_some_and(|facts| !facts.is_expired(now));
        tracing::info!(certificate = self.purpose.name(), %reason, "A certificate is needed");
        let obtained = tokio::select! {
            biased;
            // Cancel-safe: a request for what is no longer wanted is left alone.
            () = self.wanted.changed(Some(wanted)) => {
                (self.failures, self.retry_at) = (0, None);
                return;
            }
            // Cancel-safe: the files are looked at next. Approval may take long, and an administrator may put a certificate there.
            () = changed_files(self.ports.clock.as_ref(), &self.store, self.seen.as_ref()), if self.unstored.is_none() => return,
            obtained = self.issuer.obtain(wanted, has_valid) => obtained,
        };
        let taken = obtained.and_then(|(pair, facts)| {
            let replaced = self.sink.replace(&pair.chain_pem, &pair.key_pem);
            replaced.map_err(RequestFailure::Unusable)?;
            Ok((pair, facts))
        });
        match taken {
            Ok((pair, facts)) => self.took(pair, facts, wanted, in_use).await,
            Err(failure) => self.failed(&failure, reason, has_valid).await,
        }
    }

    async fn took(
        &mut self,
        pair: PemPair,
        facts: CertificateFacts,
        wanted: &Wanted,
        old: Option<&CertificateFacts>,
    ) {
        let now = self.now();
        if let Some(what) = wanted.lacking(&facts) {
            tracing::warn!(
                certificate = self.purpose.name(),
                what,
                "The signer left something out of the new certificate"
            );
        }
        self.figures.send_modify(|figures| {
            if let Some(old) = old {
                figures
                    .rotation_ages
                    .observe(now.since(old.not_before).as_secs_f64());
            }
            figures.expiration = Some(facts.not_after);
        });
        self.well();
        self.set_deadline(&facts, Some(now));
        (self.failures, self.retry_at, self.is_inline) = (0, None, false);
        self.issued_for = Some(wanted.clone());
        self.held = Some(facts);
        self.unstored = Some(pair);
        self.store_again().await;
    }

    /// The certificate is in use already; until its file is written, a restart would go back to the old one.
    async fn store_again(&mut self) {
        let Some(pair) = self.unstored.take() else { return };
        let stored: Result<Stored, FileError> = self.store.update(&pair, self.now()).await;
        match stored {
            Ok(stored) => {
                self.seen = Some(stored);
                if self.purpose == Purpose::Client && !self.is_inline {
                    self.issuer.kept_key.forget().await;
                }
            }
            Err(error) => {
                self.unstored = Some(pair);
                self.report_problem(&format!(
                    "the {} is in use but cannot be stored: {error}",
                    self.purpose.name()
                ));
            }
        }
    }

    async fn failed(&mut self, failure: &RequestFailure, reason: &Reason, has_valid: bool) {
        self.failures = self.failures.saturating_add(1);
        let pause = retry_pause(
            self.failures,
            failure.is_refusal(),
            self.ports.randomness.as_ref(),
        );
        self.retry_at = Some(self.ports.clock.moment().plus(pause));
        self.figures.send_modify(|figures| figures.renew_errors += 1);
        if failure.is_refusal() && !has_valid {
            // The name of the request is derived from the key: the same key would find the refused request again.
            self.issuer.kept_key.forget().await;
        }
        self.report_problem(&format!("no new {} ({reason}): {failure}", self.purpose.name()));
    }

    fn report_problem(&mut self, problem: &str) {
        self.figures.send_if_modified(|figures| {
            let is_new = figures.problem.as_deref() != Some(problem);
            figures.problem = Some(problem.to_owned());
            is_new
        });
        if self.throttle.is_due(problem, self.ports.clock.moment()) {
            tracing::warn!(
                certificate = self.purpose.name(),
                problem,
                "A certificate cannot be renewed or stored"
            );
        }
    }

    fn well(&mut self) {
        if self.unstored.is_some() {
            return;
        }
        self.throttle.end();
        self.figures
            .send_if_modified(|figures| figures.problem.take().is_some());
    }
}

/// Ends when the files are not as they were seen.
async fn changed_files(clock: &dyn Clock, store: &Store, seen: Option<&Stored>) {
    loop {
        clock.sleep(LOOK_INTERVAL_WITHOUT).await;
        if let Ok(found) = store.read().await
            && found.as_ref() != seen
        {
            return;
        }
    }
}

fn helpless(purpose: Purpose, reason: &Reason) -> String {
    format!(
        "the {} cannot be used: {reason}. Set rotateCertificates or --bootstrap-kubeconfig, or put a new one in its place; it \
         is taken without a restart",
        purpose.name()
    )
}
