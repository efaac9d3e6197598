//! The direction of the layers, as ARCHITECTURE.md draws it. A crate names its layer in `package.metadata.rubelet.layer`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Node, NodeDep, Package, PackageId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Vocabulary,
    Decisions,
    Ports,
    Adapters,
    Actors,
    /// Adapters that others call: they serve requests with ports and decisions.
    Inbound,
    Program,
    Support,
}

impl Layer {
    fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "vocabulary" => Self::Vocabulary,
            "decisions" => Self::Decisions,
            "ports" => Self::Ports,
            "adapters" => Self::Adapters,
            "actors" => Self::Actors,
            "inbound" => Self::Inbound,
            "program" => Self::Program,
            "support" => Self::Support,
            other => bail!("unknown layer {other:?}"),
        })
    }

    fn may_use(self, other: Self) -> bool {
        match self {
            Self::Vocabulary | Self::Ports => other == Self::Vocabulary,
            Self::Decisions => matches!(other, Self::Vocabulary | Self::Decisions),
            Self::Adapters => matches!(other, Self::Vocabulary | Self::Ports),
            Self::Actors | Self::Inbound => {
                matches!(other, Self::Vocabulary | Self::Decisions | Self::Ports)
            }
            Self::Program => other != Self::Support && other != Self::Program,
            Self::Support => true,
        }
    }

    /// Crates that a pure layer may not reach, not even through others: they bring IO, a clock or a runtime.
    fn must_not_reach(self) -> &'static [&'static str] {
        match self {
            Self::Vocabulary | Self::Decisions => &[
                "tokio",
                "tonic",
                "hyper",
                "kube",
                "kube-client",
                "axum",
                "rustix",
                "rand",
                "async-std",
                "mio",
            ],
            Self::Ports => &[
                "tokio",
                "tonic",
                "hyper",
                "kube",
                "kube-client",
                "axum",
                "rustix",
                "mio",
            ],
            Self::Adapters | Self::Actors | Self::Inbound | Self::Program | Self::Support => &[],
        }
    }
}

/// Every dependency that breaks the direction, in words.
pub(crate) fn check(metadata: &Metadata) -> Result<Vec<String>> {
    let layers = layers_of(metadata)?;
    let mut problems = Vec::new();
    for package in metadata.workspace_packages() {
        let layer = layers[package.name.as_str()];
        for dependency in &package.dependencies {
            let Some(other) = layers.get(dependency.name.as_str()) else {
                continue;
            };
            // Tests may use the test bed from anywhere.
            let allowed = layer.may_use(*other) || dependency.kind == DependencyKind::Development;
            if !allowed {
                problems.push(format!(
                    "{} ({layer:?}) must not depend on {} ({other:?})",
                    package.name, dependency.name
                ));
            }
        }
        for name in reachable(metadata, &package.id) {
            if layer.must_not_reach().contains(&name) {
                problems.push(format!(
                    "{} ({layer:?}) must not reach the crate {name}",
                    package.name
                ));
            }
        }
    }
    Ok(problems)
}

fn layers_of(metadata: &Metadata) -> Result<BTreeMap<&str, Layer>> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| Ok((package.name.as_str(), layer_of(package)?)))
        .collect()
}

fn layer_of(package: &Package) -> Result<Layer> {
    let name = package
        .metadata
        .pointer("/rubelet/layer")
        .and_then(|layer| layer.as_str());
    let name =
        name.with_context(|| format!("{} names no layer in package.metadata.rubelet", package.name))?;
    Layer::parse(name).with_context(|| format!("crate {}", package.name))
}

/// The names of all crates that end up in a package when it is built, build scripts apart.
pub(crate) fn reachable<'m>(metadata: &'m Metadata, from: &PackageId) -> Vec<&'m str> {
    let ids = reachable_ids(metadata, from, &[DependencyKind::Normal]);
    ids.into_iter().map(|id| metadata[id].name.as_str()).collect()
}

/// The same by id, along dependencies of the given kinds.
pub(crate) fn reachable_ids<'m>(
    metadata: &'m Metadata,
    from: &PackageId,
    kinds: &[DependencyKind],
) -> Vec<&'m PackageId> {
    let Some(resolve) = &metadata.resolve else {
        return Vec::new();
    };
    let nodes: BTreeMap<&PackageId, &Node> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut seen: Vec<&PackageId> = Vec::new();
    let mut next: Vec<&PackageId> = nodes.get(from).map(|node| &node.id).into_iter().collect();
    while let Some(id) = next.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let package = &metadata[id];
        // A procedural macro runs in the compiler: what it links never ends up in the program.
        let is_macro = package.targets.iter().any(cargo_metadata::Target::is_proc_macro);
        if let (Some(node), false) = (nodes.get(id), is_macro && kinds == [DependencyKind::Normal]) {
            let wanted = |dep: &&NodeDep| dep.dep_kinds.iter().any(|info| kinds.contains(&info.kind));
            let active = |dep: &&NodeDep| is_active(package, node, metadata[&dep.pkg].name.as_str());
            next.extend(node.deps.iter().filter(wanted).filter(active).map(|dep| &dep.pkg));
        }
    }
    seen
}

/// `cargo metadata` also lists optional dependencies that only a weak feature (`name?/feature`) mentions: nothing builds them.
fn is_active(package: &Package, node: &Node, name: &str) -> bool {
    let mut declared = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.name == name)
        .peekable();
    if declared.peek().is_none() || declared.any(|dependency| !dependency.optional) {
        return true;
    }
    let rename = package
        .dependencies
        .iter()
        .find_map(|dep| (dep.name == name).then_some(dep.rename.as_ref()).flatten());
    let name = rename.map_or(name, String::as_str);
    let enables = |item: &String| *item == format!("dep:{name}") || item.starts_with(&format!("{name}/"));
    node.features.iter().any(|feature| {
        **feature == *name
            || package
                .features
                .get(&**feature)
                .is_some_and(|items| items.iter().any(enables))
    })
}

#[cfg(test)]
mod tests {
    use cargo_metadata::MetadataCommand;

    use super::*;

    fn problems_of(fixture: &str) -> Vec<String> {
        let manifest = format!("{}/fixtures/{fixture}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
        let metadata = MetadataCommand::new()
            .manifest_path(manifest)
            .other_options(vec!["--offline".into()])
            .exec();
        check(&metadata.unwrap()).unwrap()
    }

    #[test]
    fn a_broken_direction_is_found() {
        assert_eq!(
            problems_of("broken-layers"),
            [
                "client (Adapters) must not depend on tokio (Adapters)",
                "words (Vocabulary) must not depend on client (Adapters)",
                "words (Vocabulary) must not reach the crate tokio",
            ]
        );
    }

    #[test]
    fn every_pair_of_layers_is_as_the_architecture_says() {
        use Layer::{Actors, Adapters, Decisions, Inbound, Ports, Program, Support, Vocabulary};
        let all = [
            Vocabulary, Decisions, Ports, Adapters, Actors, Inbound, Program, Support,
        ];
        let may = |layer: Layer| {
            all.into_iter()
                .filter(|other| layer.may_use(*other))
                .collect::<Vec<_>>()
        };
        assert_eq!(may(Vocabulary), [Vocabulary]);
        assert_eq!(may(Decisions), [Vocabulary, Decisions]);
        assert_eq!(may(Ports), [Vocabulary]);
        assert_eq!(may(Adapters), [Vocabulary, Ports]);
        assert_eq!(may(Actors), [Vocabulary, Decisions, Ports]);
        assert_eq!(may(Inbound), [Vocabulary, Decisions, Ports]);
        assert_eq!(
            may(Program),
            [Vocabulary, Decisions, Ports, Adapters, Actors, Inbound]
        );
        assert_eq!(may(Support), all);
    }
}
