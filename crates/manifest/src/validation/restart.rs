//! Rules for a container's own restart policy.

use k8s_openapi::api::core::v1::Container;

use super::Options;
use crate::fields::{list, text};
use crate::problem::{Findings, Path};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

pub(super) fn init_policy(out: &mut Findings, path: &Path, container: &Container, options: &Options) {
    let rules = list(&container.restart_policy_rules);
    let Some(own) = &container.restart_policy else {
        if !rules.is_empty() {
            out.required(&path.child("restartPolicy"), "rules need one");
        }
        return;
    };
    if !options.restart_rules {
        out.one_of(&path.child("restartPolicy"), own, &["Always"]);
    } else if own == "Always" && !options.restart_all {
        if !rules.is_empty() {
            out.forbidden(&path.child("restartPolicyRules"), "not with restartPolicy Always");
        }
    } else {
        policy(out, path, container, options);
    }
}

pub(super) fn policy(out: &mut Findings, path: &Path, container: &Container, options: &Options) {
    let rules = list(&container.restart_policy_rules);
    match &container.restart_policy {
        None if rules.is_empty() => return,
        None => out.required(&path.child("restartPolicy"), "rules need one"),
        Some(_) => {
            let policies = ["Always", "Never", "OnFailure"];
            out.one_of(
                &path.child("restartPolicy"),
                text(&container.restart_policy),
                &policies,
            );
        }
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RULES {
        out.too_many(&path, MAX_RULES);
    }
    for (position, rule) in rules.iter().enumerate() {
        let path = path.index(position);
        let actions: &[&str] = if options.restart_all {
            &["Restart", "RestartAllContainers"]
        } else {
            &["Restart"]
        };
        out.one_of(&path.child("action"), &rule.action, actions);
        let Some(codes) = &rule.exit_codes else {
            out.required(&path.child("exitCodes"), "");
            continue;
        };
        let path = path.child("exitCodes");
        out.one_of(&path.child("operator"), &codes.operator, &["In", "NotIn"]);
        if list(&codes.values).len() > MAX_EXIT_CODES {
            out.too_many(&path.child("values"), MAX_EXIT_CODES);
        }
    }
}
