//! Whether a pod may use an image that is on the node.
//!
//! Owns the check against the records and, where needed, the pod's credentials. Without records every pod may use every image.

use rubelet_ports::{ImageRequest, PresentImage};

use crate::Images;
use crate::credential::Candidate;
use crate::credentials::Found;
use crate::metrics::Check;
use crate::records::Access;
use crate::request::image_of;
use rubelet_model::image_reference::repository;

/// Whether a pod may use an image that is there.
pub(crate) enum Use {
    Granted,
    /// The registry has to be asked, with these credentials if they are known already.
    Refused(Option<Found>),
}

impl Images {
    /// Whether the pod may use an image that is there.
    pub(crate) async fn may_use(&self, request: &ImageRequest, present: &PresentImage) -> Use {
        let Some(records) = &self.records else {
            return Use::Granted;
        };
        let image = image_of(request);
        let grants = match records.access(image, &present.image_ref).await {
            Access::Compare(grants) => grants,
            verdict => {
                self.checked(&verdict);
                return match verdict {
                    Access::Exempt | Access::Granted => Use::Granted,
                    Access::MustPull | Access::Unknown | Access::Compare(_) => Use::Refused(None),
                };
            }
        };
        // A secret that cannot be read is reported with the pull.
        let Ok(found) = self.credentials.find(&repository(image), &request.pod).await else {
            self.count(|metrics| metrics.checked(Check::Error));
            return Use::Refused(None);
        };
        let fits = records.compare(image, &present.image_ref, &grants, &found.candidates);
        let fits = fits.await;
        self.count(|metrics| metrics.checked(compared(fits)));
        match fits {
            true => Use::Granted,
            false => Use::Refused(Some(found)),
        }
    }

    /// As [`Self::may_use`], with credentials that are known already, or else those that can be had without running a program. Only a yes
    /// is counted: after a no, `may_use` or the registry is asked.
    pub(crate) async fn may_use_at_once(
        &self,
        request: &ImageRequest,
        present: &PresentImage,
        known: Option<&[Candidate]>,
    ) -> bool {
        let Some(records) = &self.records else {
            return true;
        };
        let image = image_of(request);
        let grants = match records.access(image, &present.image_ref).await {
            granted @ (Access::Exempt | Access::Granted) => {
                self.checked(&granted);
                return true;
            }
            Access::MustPull | Access::Unknown => return false,
            Access::Compare(grants) => grants,
        };
        let found;
        let candidates: &[Candidate] = match known {
            Some(known) => known,
            None => {
                let repository = repository(image);
                found = self.credentials.find_at_hand(&repository, &request.pod).await;
                match &found {
                    Ok(found) => &found.candidates,
                    Err(_) => return false,
                }
            }
        };
        let fits = records.compare(image, &present.image_ref, &grants, candidates);
        let fits = fits.await;
        if fits {
            self.count(|metrics| metrics.checked(compared(true)));
        }
        fits
    }

    fn checked(&self, access: &Access) {
        let result = match access {
            Access::Exempt => Check::PolicyAllowed,
            Access::Granted => Check::RecordFound,
            Access::MustPull => Check::MustAuthenticate,
            Access::Unknown => Check::Error,
            // Not decided yet.
            Access::Compare(_) => return,
        };
        self.count(|metrics| metrics.checked(result));
    }
}

fn compared(fits: bool) -> Check {
    match fits {
        true => Check::RecordFound,
        false => Check::MustAuthenticate,
    }
}
