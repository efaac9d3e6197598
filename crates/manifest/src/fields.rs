//! Reading optional fields as the API means them: an absent text is the empty text, an absent list the empty list.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_model::Quantity;

pub(crate) fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

pub(crate) fn list<T>(field: &Option<Vec<T>>) -> &[T] {
    field.as_deref().unwrap_or_default()
}

pub(crate) fn flag(field: Option<bool>) -> bool {
    field.unwrap_or_default()
}

/// A quantity of a decoded pod; the reader refused what is none.
pub(crate) fn quantity(field: &ApiQuantity) -> Quantity {
    field.0.parse().unwrap_or_default()
}

/// Sets a text that is absent or empty.
pub(crate) fn fill(field: &mut Option<String>, value: &str) {
    if text(field).is_empty() {
        *field = Some(value.to_owned());
    }
}
