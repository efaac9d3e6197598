//! Rules about images: garbage collection, pulling, verification of pull credentials.

use rubelet_model::{GoDuration, names};

use super::Rules;
use crate::gates::Gate;

pub(super) fn check(rules: &mut Rules<'_>) {
    garbage_collection(rules);
    pulling(rules);
    verification(rules);
}

fn garbage_collection(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let high = c.image_gc_high_threshold_percent.unwrap_or_default();
    let low = c.image_gc_low_threshold_percent.unwrap_or_default();
    rules.in_range("imageGCHighThresholdPercent", high.into(), 0, 100);
    rules.in_range("imageGCLowThresholdPercent", low.into(), 0, 100);
    if low >= high {
        rules.refuse(
            "imageGCLowThresholdPercent",
            low,
            format!("must be less than imageGCHighThresholdPercent ({high})"),
        );
    }
    let (minimum, maximum) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    if !maximum.is_zero() && !rules.enabled(Gate::ImageMaximumGCAge) {
        rules.refuse(
            "imageMaximumGCAge",
            maximum,
            "needs the feature gate ImageMaximumGCAge",
        );
    }
    for (path, age) in [("imageMinimumGCAge", minimum), ("imageMaximumGCAge", maximum)] {
        if age.is_negative() {
            rules.refuse(path, age, "must not be negative");
        }
    }
    if maximum > GoDuration::ZERO && maximum <= minimum {
        rules.refuse(
            "imageMaximumGCAge",
            maximum,
            format!("must be 0 or more than imageMinimumGCAge ({minimum})"),
        );
    }
}

fn pulling(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    rules.not_negative("registryBurst", c.registry_burst.into());
    rules.not_negative("registryPullQPS", c.registry_pull_qps.unwrap_or_default().into());
    let Some(parallel) = c.max_parallel_image_pulls else {
        return;
    };
    rules.at_least("maxParallelImagePulls", parallel.into(), 1);
    if c.serialize_image_pulls.unwrap_or_default() && parallel > 1 {
        rules.refuse(
            "maxParallelImagePulls",
            parallel,
            "must be at most 1 while serializeImagePulls is true",
        );
    }
}

fn verification(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    let (policy, patterns) = (
        &c.image_pull_credentials_verification_policy,
        &c.preloaded_images_verification_allowlist,
    );
    if !rules.enabled(Gate::KubeletEnsureSecretPulledImages) {
        if !policy.is_empty() {
            rules.refuse_text(
                "imagePullCredentialsVerificationPolicy",
                policy,
                "needs the feature gate KubeletEnsureSecretPulledImages",
            );
        }
        if !patterns.is_empty() {
            rules.refuse(
                "preloadedImagesVerificationAllowlist",
                "the list",
                "needs the feature gate KubeletEnsureSecretPulledImages",
            );
        }
        return;
    }
    rules.one_of(
        "imagePullCredentialsVerificationPolicy",
        policy,
        &[
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ],
    );
    if !patterns.is_empty() && policy != "NeverVerifyAllowlistedImages" {
        rules.refuse(
            "preloadedImagesVerificationAllowlist",
            "the list",
            "may be set only when imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages",
        );
        return;
    }
    for (position, pattern) in patterns.iter().enumerate() {
        if !is_allowlist_pattern(pattern) {
            rules.refuse_text(
                format!("preloadedImagesVerificationAllowlist[{position}]"),
                pattern,
                "must be an image name without tag and digest, or a registry or path followed by /*",
            );
        }
    }
}

/// `registry/path/*` or a plain image name.
fn is_allowlist_pattern(pattern: &str) -> bool {
    if pattern.trim() != pattern {
        return false;
    }
    match pattern.strip_suffix("/*") {
        Some(prefix) => !prefix.is_empty() && !prefix.contains('*'),
        None => names::is_image_name(pattern),
    }
}
