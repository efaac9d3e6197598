//! Rules for amounts: names of resources, requests within limits, huge pages, claims, and pods against their containers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_model::Quantity;
use rubelet_model::names::is_qualified_name;
use rubelet_model::pod::MIRROR_ANNOTATION;

use super::names::{dns_label, dns_subdomain};
use crate::fields::{list, quantity, text};
use crate::problem::{Findings, Path};

const HUGEPAGES: &str = "hugepages-";
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
const WHOLE: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

type ResourceList = Option<BTreeMap<String, ApiQuantity>>;

pub(crate) fn is_hugepages(name: &str) -> bool {
    name.starts_with(HUGEPAGES)
}

pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub(crate) fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_hugepages(name)
}

fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}"))
}

fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// What all containers together request at the same time.
pub(crate) fn aggregate(
    spec: &PodSpec,
    of: impl Fn(&ResourceRequirements) -> &ResourceList,
) -> BTreeMap<String, Quantity> {
    let amounts = |resources: &Option<ResourceRequirements>| -> BTreeMap<String, Quantity> {
        let list = resources.as_ref().and_then(|resources| of(resources).as_ref());
        let entries = list.into_iter().flatten();
        entries
            .map(|(name, amount)| (name.clone(), quantity(amount)))
            .collect()
    };
    let mut total = BTreeMap::new();
    for container in &spec.containers {
        add(&mut total, &amounts(&container.resources));
    }
    let mut sidecars = BTreeMap::new();
    let mut highest = BTreeMap::new();
    for container in list(&spec.init_containers) {
        let own = amounts(&container.resources);
        let mut now = sidecars.clone();
        add(&mut now, &own);
        if text(&container.restart_policy) == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
        }
        raise(&mut highest, now);
    }
    raise(&mut total, highest);
    total
}

fn add(total: &mut BTreeMap<String, Quantity>, more: &BTreeMap<String, Quantity>) {
    for (name, amount) in more {
        total
            .entry(name.clone())
            .and_modify(|sum| sum.add(amount))
            .or_insert_with(|| amount.clone());
    }
}

fn raise(total: &mut BTreeMap<String, Quantity>, other: BTreeMap<String, Quantity>) {
    for (name, amount) in other {
        let keep = total.get(&name).is_some_and(|known| *known >= amount);
        if !keep {
            total.insert(name, amount);
        }
    }
}

fn resource_name(out: &mut Findings, path: &Path, name: &str) -> bool {
    let quota = |name: &str| is_hugepages(name) || name.starts_with("requests.hugepages-");
    if !is_qualified_name(name) {
        out.invalid(path, "not a resource name");
        return false;
    }
    if !name.contains('/') && !STANDARD.contains(&name) && !quota(name) {
        out.invalid(path, "neither a standard resource nor one with a domain");
        return false;
    }
    true
}

fn container_resource_name(out: &mut Findings, path: &Path, name: &str) {
    resource_name(out, path, name);
    if !name.contains('/') {
        let fits = ["cpu", "memory", "ephemeral-storage"].contains(&name) || is_hugepages(name);
        out.invalid_unless(fits, path, "not a resource of containers");
    } else if !is_native(name) {
        out.invalid_unless(is_extended(name), path, "not an extended resource");
    }
}

fn pod_resource_name(out: &mut Findings, path: &Path, name: &str) {
    if resource_name(out, path, name) && !is_pod_level(name) {
        out.not_supported(path, &["cpu", "memory", HUGEPAGES]);
    }
}

pub(super) fn amount(out: &mut Findings, path: &Path, name: &str, amount: &Quantity) {
    out.invalid_unless(amount.signum() >= 0, path, "must not be negative");
    if WHOLE.contains(&name) || is_extended(name) {
        out.invalid_unless(amount.milli_value() % 1000 == 0, path, "must be a whole number");
    }
}

fn fills_pages(name: &str, amount: &Quantity) -> bool {
    let Some(Ok(size)) = name.strip_prefix(HUGEPAGES).map(str::parse::<Quantity>) else {
        return false;
    };
    size.signum() > 0
        && size.milli_value() % 1000 == 0
        && size.value() != 0
        && amount.value() % size.value() == 0
}

pub(super) fn container_requirements(
    out: &mut Findings,
    path: &Path,
    resources: &ResourceRequirements,
    claims: &BTreeSet<&str>,
) {
    requirements(out, path, resources, claims, container_resource_name);
}

fn requirements(
    out: &mut Findings,
    path: &Path,
    resources: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    check_name: fn(&mut Findings, &Path, &str),
) {
    let (mut has_compute, mut has_pages) = (false, false);
    let mut note = |name: &str| {
        has_compute |= name == "cpu" || name == "memory";
        has_pages |= is_hugepages(name);
    };
    let each = |out: &mut Findings, path: &Path, name: &str, value: &Quantity| {
        check_name(out, path, name);
        amount(out, path, name, value);
        if is_hugepages(name) {
            out.invalid_unless(fills_pages(name, value), path, "not a multiple of the page size");
        }
    };
    let limits_path = path.child("limits");
    for (name, limit) in resources.limits.iter().flatten() {
        each(out, &limits_path.key(name), name, &quantity(limit));
        note(name);
    }
    let requests_path = path.child("requests");
    for (name, request) in resources.requests.iter().flatten() {
        let request = quantity(request);
        each(out, &requests_path.key(name), name, &request);
        note(name);
        let limit = resources
            .limits
            .as_ref()
            .and_then(|limits| limits.get(name))
            .map(quantity);
        match limit {
            Some(limit) if request != limit && !may_overcommit(name) => {
                out.invalid(&requests_path, format!("{name} must be equal to its limit"));
            }
            Some(limit) if request > limit => {
                out.invalid(&requests_path, format!("{name} is more than its limit"));
            }
            Some(_) => {}
            None if !may_overcommit(name) => out.required(&limits_path, "this resource needs a limit"),
            None => {}
        }
    }
    if has_pages && !has_compute {
        out.forbidden(path, "huge pages need cpu or memory");
    }
    claim_names(out, &path.child("claims"), list(&resources.claims), claims);
}

fn claim_names(out: &mut Findings, path: &Path, used: &[ResourceClaim], known: &BTreeSet<&str>) {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for (position, claim) in used.iter().enumerate() {
        let path = path.index(position);
        let name = claim.name.as_str();
        if name.is_empty() {
            out.required(&path, "");
            continue;
        }
        if names.contains(name) {
            out.duplicate(&path);
        } else {
            let request = text(&claim.request);
            let mut key = name.to_owned();
            if !request.is_empty() {
                dns_label(out, &path.child("request"), request);
                key = format!("{name}/{request}");
            }
            let part = format!("{name}/");
            let clashes = names.contains(&key)
                || (request.is_empty() && names.iter().any(|known| known.starts_with(&part)));
            if clashes {
                out.duplicate(&path);
            }
            names.insert(key);
        }
        if !known.contains(name) {
            out.not_found(&path, "not a name of spec.resourceClaims");
        }
    }
}

pub(super) fn pod_resources(out: &mut Findings, spec_path: &Path, spec: &PodSpec, claims: &BTreeSet<&str>) {
    let Some(resources) = &spec.resources else { return };
    let path = spec_path.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return out.forbidden(&path, "not for Windows");
    }
    if resources.claims.is_some() {
        out.forbidden(&path.child("claims"), "a pod's own resources have no claims");
    }
    requirements(out, &path, resources, claims, pod_resource_name);
    let within = |list: &ResourceList, name: &str, needed: &Quantity| {
        let given = list.as_ref().and_then(|list| list.get(name)).map(quantity);
        given.is_none_or(|given| *needed <= given)
    };
    for (name, needed) in aggregate(spec, |resources| &resources.requests) {
        let path = path.child("requests").key(&name);
        out.invalid_unless(
            within(&resources.requests, &name, &needed),
            &path,
            "less than the containers request",
        );
    }
    for (name, needed) in aggregate(spec, |resources| &resources.limits) {
        let path = path.child("limits").key(&name);
        let fits = !is_hugepages(&name) || within(&resources.limits, &name, &needed);
        out.invalid_unless(fits, &path, "less than the containers' limits");
    }
    for (position, container) in spec.containers.iter().enumerate() {
        let limits = container.resources.as_ref().and_then(|own| own.limits.as_ref());
        for (name, limit) in limits.into_iter().flatten() {
            let path = path.child("containers").index(position).key(name).child("limits");
            let fits = within(&resources.limits, name, &quantity(limit));
            out.invalid_unless(fits, &path, "more than the pod's limit");
        }
    }
}

pub(super) fn pod_claims(out: &mut Findings, path: &Path, claims: &[PodResourceClaim], meta: &ObjectMeta) {
    let is_mirror = meta
        .annotations
        .as_ref()
        .is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    let mut names = BTreeSet::new();
    for (position, claim) in claims.iter().enumerate() {
        if is_mirror {
            // Upstream names no field here, and prints it like this.
            out.forbidden(&Path::root("[]"), "static pods have no resource claims");
            continue;
        }
        let path = path.index(position);
        if claim.name.is_empty() {
            out.required(&path.child("name"), "");
        } else if names.contains(&claim.name) {
            out.duplicate(&path.child("name"));
        } else {
            dns_label(out, &path.child("name"), &claim.name);
            names.insert(&claim.name);
        }
        let both = [&claim.resource_claim_name, &claim.resource_claim_template_name];
        let given = both.iter().filter(|name| name.is_some()).count();
        out.invalid_unless(given == 1, &path, "needs a claim or a template, not both");
        if let Some(name) = &claim.resource_claim_name {
            dns_subdomain(out, &path.child("resourceClaimName"), name);
        }
        if let Some(name) = &claim.resource_claim_template_name {
            dns_subdomain(out, &path.child("resourceClaimTemplateName"), name);
        }
    }
}
