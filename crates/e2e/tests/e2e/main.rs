//! End-to-end tests.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests look at the real machine"
)]

mod app_armor;
mod bad_days_containerd;
mod bad_days_files;
mod bad_days_virtual_node;
mod bad_days_volumes;
mod cgroups;
mod cgroups_v2;
mod cluster_admission;
mod cluster_apiserver;
mod cluster_certificates;
mod cluster_changes;
mod cluster_deletion;
mod cluster_eviction;
mod cluster_goldens;
mod cluster_images;
mod cluster_kubeconfig;
mod cluster_metrics;
mod cluster_mirrors;
mod cluster_objects;
mod cluster_outages;
mod cluster_pods;
mod cluster_registration;
mod cluster_static_pods;
mod cluster_streams;
mod cluster_switch;
mod cluster_trust;
mod cluster_two_nodes;
mod cluster_workloads;
mod configz;
mod containerd2;
mod control_plane;
mod cri_containerd2;
mod cri_facts;
mod images_containerd2;
mod kill_nine;
mod kubeadm;
mod log_rotation_containerd2;
mod metrics_server;
mod oracle_admission;
mod oracle_api_objects;
mod oracle_config;
mod oracle_configuration;
mod oracle_environment;
mod oracle_gates;
mod oracle_goldens;
mod oracle_node;
mod oracle_ours;
mod oracle_pods;
mod oracle_pressure;
mod oracle_quantity;
mod oracle_resources;
mod oracle_security;
mod oracle_static_pods;
mod oracle_status;
mod oracle_status_patch;
mod oracle_volumes;
mod pods_scenarios;
mod pods_switch;
mod profile;
mod prometheus;
mod statistics_beside;
mod statistics_v2;
mod virtual_node;
mod virtual_node_shutdown;
mod yaml_text;
