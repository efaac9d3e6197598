//! A list of named quantities (`cpu`, `memory`, `hugepages-2Mi`) and the few sums that pods need.
//!
//! Owns addition, maximum and reading from API text. It gives no name a meaning.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;
use rubelet_model::quantity::ParseQuantityError;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// Named quantities; a name that is absent counts as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, Quantity>);

impl Amounts {
    /// The list as it stands in a pod or node; the error carries the name of the bad entry.
    pub fn read(list: Option<&BTreeMap<String, ApiQuantity>>) -> Result<Self, (String, ParseQuantityError)> {
        let entries = list.into_iter().flatten().map(|(name, text)| {
            text.0
                .parse()
                .map(|quantity| (name.clone(), quantity))
                .map_err(|error| (name.clone(), error))
        });
        entries.collect::<Result<_, _>>().map(Self)
    }

    pub fn get(&self, name: &str) -> Option<&Quantity> {
        self.0.get(name)
    }

    pub fn set(&mut self, name: impl Into<String>, quantity: Quantity) {
        self.0.insert(name.into(), quantity);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        self.0.iter().map(|(name, quantity)| (name.as_str(), quantity))
    }

    pub fn is_zero(&self, name: &str) -> bool {
        self.get(name).is_none_or(Quantity::is_zero)
    }

    /// Whole units, rounded up.
    pub fn value(&self, name: &str) -> i64 {
        self.get(name).map_or(0, Quantity::value)
    }

    /// Thousandths, rounded up.
    pub fn milli_value(&self, name: &str) -> i64 {
        self.get(name).map_or(0, Quantity::milli_value)
    }

    /// The quantity, or zero.
    pub fn quantity(&self, name: &str) -> Quantity {
        self.get(name).cloned().unwrap_or_default()
    }

    /// Adds every entry of `other`.
    pub fn add(&mut self, other: &Self) {
        for (name, quantity) in &other.0 {
            match self.0.get_mut(name) {
                Some(own) => own.add(quantity),
                None => self.set(name.clone(), quantity.clone()),
            }
        }
    }

    /// Takes every entry of `other` that is larger than, or missing from, this list.
    pub fn raise_to(&mut self, other: &Self) {
        for (name, quantity) in &other.0 {
            if self.0.get(name).is_none_or(|own| quantity > own) {
                self.set(name.clone(), quantity.clone());
            }
        }
    }
}

impl FromIterator<(String, Quantity)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (String, Quantity)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}
