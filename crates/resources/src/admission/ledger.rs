//! The resources that admitted pods hold: read and written by every admission.
//!
//! Owns the holdings of all admitted pods that have not ended. One task owns the ledger, so that a check and the reservation
//! that follows from it are one step. It does not decide about admission.
//!
//! Static pods that follow each other under one name never run at the same time. They count as one, with the most that any
//! of them needs: otherwise an edited pod would not fit beside its old version.
//!
//! The sums change with each reservation, so that an admission costs the same however many pods there are.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::{full_name_of, is_static_pod};

use super::host_ports::{HostPort, host_ports};
use super::need::{Need, Sum};
use super::preemption::Rank;
use crate::demand::PodDemand;
use crate::rules::Rules;

/// What one pod holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// `name_namespace`
    pub full_name: String,
    /// Whether a pod of the same name may replace it before it has ended.
    pub is_static: bool,
    pub need: Need,
    pub ports: Vec<HostPort>,
    pub rank: Rank,
}

impl Holding {
    pub fn of(pod: &Pod, demand: &PodDemand, rules: &Rules) -> Self {
        Self {
            full_name: full_name_of(pod),
            is_static: is_static_pod(pod),
            need: Need::of_pod(demand, rules),
            ports: host_ports(pod),
            rank: Rank::of(pod, demand, rules),
        }
    }
}

/// What the other pods hold when a pod is admitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    pub need: Need,
    pub pods: i64,
    /// As far as the pod to be admitted wants the same numbers.
    pub ports: Vec<HostPort>,
}

/// Whether pods that terminate count among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminating {
    Counted,
    Excluded,
}

/// What some of the pods hold together.
#[derive(Clone, Debug, Default)]
struct Total {
    need: Sum,
    pods: i64,
}

impl Total {
    /// A place with this need begins to count. `None`: it holds nothing.
    fn add(&mut self, need: Option<&Need>) {
        self.pods += i64::from(need.is_some());
        need.into_iter().for_each(|need| self.need.add(need));
    }

    /// A place with this need counts no longer.
    fn remove(&mut self, need: Option<&Need>) {
        self.pods -= i64::from(need.is_some());
        need.into_iter().for_each(|need| self.need.remove(need));
    }
}

/// The holdings of all admitted pods.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    holdings: BTreeMap<PodUid, Holding>,
    /// Those of them that terminate: their holdings become free by themselves.
    terminating: BTreeSet<PodUid>,
    /// Static pods by name: those of one name count as one.
    static_names: BTreeMap<String, BTreeSet<PodUid>>,
    /// The pods that hold a port of the host, by its number.
    ports: BTreeMap<i32, BTreeSet<PodUid>>,
    /// Of all pods, and of those that do not terminate.
    all: Total,
    staying: Total,
}

impl Ledger {
    /// Reserves the pod's resources, whether or not they are free: a running pod holds them anyway.
    pub fn reserve(&mut self, uid: PodUid, holding: Holding) {
        let is_terminating = self.terminating.contains(&uid);
        self.release(&uid);
        for port in &holding.ports {
            self.ports.entry(port.port).or_default().insert(uid.clone());
        }
        let place = Place::of(&uid, &holding);
        self.change_place(&place, |ledger| {
            if holding.is_static {
                let of_name = ledger.static_names.entry(holding.full_name.clone());
                of_name.or_default().insert(uid.clone());
            }
            if is_terminating {
                ledger.terminating.insert(uid.clone());
            }
            ledger.holdings.insert(uid, holding);
        });
    }

    /// Releases the pod's resources. Returns whether it held any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        let Some(place) = self.place_of(uid) else {
            return false;
        };
        self.change_place(&place, |ledger| {
            ledger.terminating.remove(uid);
            let Some(holding) = ledger.holdings.remove(uid) else {
                return;
            };
            if holding.is_static {
                remove_from(&mut ledger.static_names, &holding.full_name, uid);
            }
            for port in &holding.ports {
                remove_from(&mut ledger.ports, &port.port, uid);
            }
        });
        true
    }

    /// A new pod waits for this pod's resources instead of being rejected.
    pub fn set_terminating(&mut self, uid: &PodUid) {
        if let Some(place) = self.place_of(uid)
            && !self.terminating.contains(uid)
        {
            self.change_place(&place, |ledger| {
                ledger.terminating.insert(uid.clone());
            });
        }
    }

    /// New pods no longer wait for this pod. Returns whether it was terminating.
    pub fn unset_terminating(&mut self, uid: &PodUid) -> bool {
        let Some(place) = self.place_of(uid).filter(|_| self.terminating.contains(uid)) else {
            return false;
        };
        self.change_place(&place, |ledger| {
            ledger.terminating.remove(uid);
        });
        true
    }

    pub fn terminating(&self) -> impl Iterator<Item = &PodUid> {
        self.terminating.iter()
    }

    pub fn holding(&self, uid: &PodUid) -> Option<&Holding> {
        self.holdings.get(uid)
    }

    pub fn contains(&self, uid: &PodUid) -> bool {
        self.holdings.contains_key(uid)
    }

    pub fn holdings(&self) -> impl Iterator<Item = (&PodUid, &Holding)> {
        self.holdings.iter()
    }

    /// What all pods hold, without ports.
    pub fn total(&self) -> Others {
        Others {
            need: self.all.need.amounts(),
            pods: self.all.pods,
            ports: Vec::new(),
        }
    }

    /// What the pods hold that the new pod would run beside.
    pub fn beside(&self, uid: &PodUid, new_pod: &Holding, terminating: Terminating) -> Others {
        let mut total = match terminating {
            Terminating::Counted => self.all.clone(),
            Terminating::Excluded => self.staying.clone(),
        };
        let mut places: Vec<Place> = self.place_of(uid).into_iter().collect();
        let own = Place::of(uid, new_pod);
        if !places.contains(&own) {
            places.push(own);
        }
        let counts = |other: &PodUid, holding: &Holding| {
            let is_excluded = terminating == Terminating::Excluded && self.terminating.contains(other);
            is_beside((uid, new_pod), (other, holding)) && !is_excluded
        };
        for place in &places {
            total.remove(self.need_of(place, terminating).as_ref());
            total.add(self.need_where(place, counts).as_ref());
        }
        let mut ports = Vec::new();
        let numbers: BTreeSet<i32> = new_pod.ports.iter().map(|port| port.port).collect();
        for number in numbers {
            let holders = self.ports.get(&number).into_iter().flatten();
            let holders = holders.filter_map(|other| Some((other, self.holdings.get(other)?)));
            let beside = holders.filter(|(other, holding)| counts(other, holding));
            let held = beside.flat_map(|(_, holding)| &holding.ports);
            ports.extend(held.filter(|port| port.port == number).cloned());
        }
        Others {
            need: total.need.amounts(),
            pods: total.pods,
            ports,
        }
    }

    /// The pods that the new pod would run beside.
    pub fn neighbours<'a>(
        &'a self,
        uid: &'a PodUid,
        new_pod: &'a Holding,
        terminating: Terminating,
    ) -> impl Iterator<Item = (&'a PodUid, &'a Holding)> {
        self.holdings.iter().filter(move |(other, holding)| {
            let is_excluded = terminating == Terminating::Excluded && self.terminating.contains(*other);
            is_beside((uid, new_pod), (other, holding)) && !is_excluded
        })
    }

    fn place_of(&self, uid: &PodUid) -> Option<Place> {
        self.holdings.get(uid).map(|holding| Place::of(uid, holding))
    }

    /// The one way to change what counts: the sums lose what the place held, and get what it holds after.
    fn change_place(&mut self, place: &Place, change: impl FnOnce(&mut Self)) {
        self.all
            .remove(self.need_of(place, Terminating::Counted).as_ref());
        self.staying
            .remove(self.need_of(place, Terminating::Excluded).as_ref());
        change(self);
        self.all.add(self.need_of(place, Terminating::Counted).as_ref());
        self.staying
            .add(self.need_of(place, Terminating::Excluded).as_ref());
    }

    fn need_of(&self, place: &Place, terminating: Terminating) -> Option<Need> {
        self.need_where(place, |uid, _| {
            terminating == Terminating::Counted || !self.terminating.contains(uid)
        })
    }

    /// The most that any of the place's pods needs which count; `None` when none of them does.
    fn need_where(&self, place: &Place, counts: impl Fn(&PodUid, &Holding) -> bool) -> Option<Need> {
        let mut most: Option<Need> = None;
        let mut count = |uid: &PodUid| {
            let Some(holding) = self.holdings.get(uid) else {
                return;
            };
            // A pod that is to be admitted anew may be in another place than before.
            if Place::of(uid, holding) != *place || !counts(uid, holding) {
                return;
            }
            match &mut most {
                Some(most) => most.raise_to(&holding.need),
                None => most = Some(holding.need.clone()),
            }
        };
        match place {
            Place::Pod(uid) => count(uid),
            Place::StaticName(name) => self.static_names.get(name).into_iter().flatten().for_each(count),
        }
        most
    }
}

/// What counts once: a pod, or the static pods of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Pod(PodUid),
    StaticName(String),
}

impl Place {
    fn of(uid: &PodUid, holding: &Holding) -> Self {
        match holding.is_static {
            true => Self::StaticName(holding.full_name.clone()),
            false => Self::Pod(uid.clone()),
        }
    }
}

/// Whether the new pod would run beside the other one: it is not itself, and no static pod that it follows.
fn is_beside((uid, new_pod): (&PodUid, &Holding), (other, holding): (&PodUid, &Holding)) -> bool {
    let precedes = holding.is_static && new_pod.is_static && holding.full_name == new_pod.full_name;
    other != uid && !precedes
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PodUid>>, key: &K, uid: &PodUid) {
    if let Some(uids) = index.get_mut(key) {
        uids.remove(uid);
        if uids.is_empty() {
            index.remove(key);
        }
    }
}
