//! The plugins' interfaces on the wire: bytes as another implementation writes them.

use prost::Message;
use rubelet_wire::csi::v1::volume_capability::access_mode::Mode;
use rubelet_wire::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use rubelet_wire::csi::v1::{
    NodeGetInfoResponse, NodePublishVolumeRequest, NodeServiceCapability, VolumeCapability,
};
use rubelet_wire::plugin_registration::v1::PluginInfo;

#[test]
fn numbers_and_types_are_the_interfaces() {
    let request = NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        target_path: "/t".to_owned(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeSingleWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: "x".to_owned(),
                ..MountVolume::default()
            })),
        }),
        readonly: true,
        secrets: [("a".to_owned(), "b".to_owned())].into(),
        ..NodePublishVolumeRequest::default()
    };
    let bytes =
        b"\x0a\x01v\x22\x02/t\x2a\x09\x12\x03\x0a\x01x\x1a\x02\x08\x06\x30\x01\x3a\x06\x0a\x01a\x12\x01b";
    assert_eq!(request.encode_to_vec(), bytes);
    let info = NodeGetInfoResponse::decode(&b"\x0a\x02n1\x10\x05\x1a\x08\x0a\x06\x0a\x01k\x12\x01v"[..]);
    let info = info.expect("it can be decoded");
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n1", 5));
    let topology = info.accessible_topology.expect("there is one");
    assert_eq!(topology.segments["k"], "v");
    let capability = NodeServiceCapability::decode(&b"\x0a\x02\x08\x06"[..]).expect("it can be decoded");
    assert_eq!(capability.encode_to_vec(), b"\x0a\x02\x08\x06");
    let plugin =
        PluginInfo::decode(&b"\x0a\x09CSIPlugin\x12\x01d\x22\x051.0.0"[..]).expect("it can be decoded");
    assert_eq!(
        (
            plugin.r#type.as_str(),
            plugin.endpoint.as_str(),
            plugin.supported_versions
        ),
        ("CSIPlugin", "", vec!["1.0.0".to_owned()])
    );
}
