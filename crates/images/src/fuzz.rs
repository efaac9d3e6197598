//! The readers of files that others write, for the fuzzer. No program is built with this.

use crate::keyring::docker_config::{self, DockerConfigForm};
use crate::records::record::{PulledRecord, decode_intent};

/// A docker configuration: the two forms read the same users.
///
/// # Panics
/// When they do not.
pub fn docker_config(bytes: &[u8]) {
    let _ = docker_config::read(bytes, DockerConfigForm::Json);
    let users = docker_config::read(bytes, DockerConfigForm::Legacy);
    let wrapped = [b"{\"auths\":", bytes, b"}"].concat();
    let is_json = serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
    // What closes the brackets itself is another text.
    if is_json {
        assert!(users == docker_config::read(&wrapped, DockerConfigForm::Json));
    }
}

/// A record of a pull that was read and written, once and twice. (A time that a clock cannot show is cut at the first reading.)
pub fn pull_record(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let _ = decode_intent(bytes);
    let written = PulledRecord::decode(bytes).ok()?.value.encode();
    let again = PulledRecord::decode(&written).map(|decoded| decoded.value.encode());
    Some((written, again.unwrap_or_default()))
}
