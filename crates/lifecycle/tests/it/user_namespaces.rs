//! Ranges of user ids.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rubelet_lifecycle::user_namespaces::{DEFAULT_IDS_PER_POD, IdRange, Record, RecordError, UserNamespaces};
use rubelet_model::observation::PodUid;

const BLOCK: u32 = DEFAULT_IDS_PER_POD;

fn table(blocks: u32) -> UserNamespaces {
    let range = IdRange {
        first: BLOCK,
        length: blocks * BLOCK,
    };
    UserNamespaces::new(range, BLOCK, 1).expect("a good range")
}

fn first_id(record: &Record) -> u32 {
    record.uid_mappings[0].host_id
}

#[test]
fn ranges_are_judged() {
    let check = |first: u32, length: u32, ids_per_pod: u32, max_pods: u32, problem: &str| {
        let found = UserNamespaces::new(IdRange { first, length }, ids_per_pod, max_pods);
        let found = found.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            found.contains(problem) && found.is_empty() == problem.is_empty(),
            "{found}"
        );
    };
    check(BLOCK, 2 * BLOCK, BLOCK, 2, "");
    check(BLOCK, 2 * BLOCK, BLOCK, 3, "not enough for 3 pods");
    check(BLOCK, 2 * BLOCK, BLOCK + 1, 1, "ids per pod");
    check(BLOCK, 2 * BLOCK, 0, 1, "ids per pod");
    check(BLOCK + 1, BLOCK, BLOCK, 1, "not a multiple of 65536");
    check(0, 2 * BLOCK, BLOCK, 1, "own users would be in a pod");
    check(BLOCK, BLOCK + 1, BLOCK, 1, "which is not a multiple of 65536");
    check(2 * BLOCK, 4 * BLOCK, 2 * BLOCK, 2, "");
    let whole = IdRange::whole(BLOCK);
    assert_eq!((whole.first, whole.length), (65536, u32::MAX - 65535));
    assert!(UserNamespaces::new(whole, BLOCK, 65535).is_ok());
}

#[test]
fn getsubids_is_read() {
    let check = |users: &str, groups: &str, expected: Option<(u32, u32)>| {
        let found = IdRange::from_subordinate_ids(users, groups).ok();
        assert_eq!(
            found.map(|range| (range.first, range.length)),
            expected,
            "{users:?}"
        );
    };
    let line = "0: kubelet 65536 2147483648\n";
    check(line, line, Some((65536, 2_147_483_648)));
    check(line, "0: kubelet 65536 65536\n", None);
    let two = "0: kubelet 65536 65536\n1: kubelet 196608 65536\n";
    check(two, two, None);
    check("", "", None);
    check("0: kubelet 65536", "0: kubelet 65536", None);
    check("0: kubelet x 65536", "0: kubelet x 65536", None);
    check("0: kubelet +65536 65536", "0: kubelet +65536 65536", None);
    check("0: kubelet 65536 4294967296", "0: kubelet 65536 4294967296", None);
}

#[test]
fn records_are_upstreams() {
    let mut table = table(4);
    let record = table.allocate(&PodUid::from("a"), 0).expect("a free range");
    let text = r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#;
    assert_eq!(record.text(), text);
    assert_eq!(Record::read(text.as_bytes()), Ok(record.clone()));
    assert_eq!(Record::of_runtime(&record.namespace()), Some(record));
    let check = |text: &str, expected: RecordError| {
        assert_eq!(Record::read(text.as_bytes()), Err(expected), "{text}");
    };
    let one = r#"{"hostId":65536,"containerId":0,"length":65536}"#;
    let other = r#"{"hostId":131072,"containerId":0,"length":65536}"#;
    let shifted = r#"{"hostId":65536,"containerId":1,"length":65536}"#;
    let both = |users: &str, groups: &str| format!(r#"{{"uidMappings":[{users}],"gidMappings":[{groups}]}}"#);
    check(&both("", ""), RecordError::NotOne);
    check(
        &both(&format!("{one},{other}"), &format!("{one},{other}")),
        RecordError::NotOne,
    );
    check(&both(one, other), RecordError::UsersAndGroups);
    check(&both(one, ""), RecordError::UsersAndGroups);
    check(&both(shifted, shifted), RecordError::NoRoot);
    for broken in ["", "{", "[]", "null", r#"{"uidMappings":1}"#] {
        assert!(
            matches!(Record::read(broken.as_bytes()), Err(RecordError::Form(_))),
            "{broken}"
        );
    }
}

#[test]
fn ranges_of_an_earlier_life_are_adopted() {
    let record = |first: u32, length: u32| {
        let mapping = format!(r#"[{{"hostId":{first},"containerId":0,"length":{length}}}]"#);
        let text = format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#);
        Record::read(text.as_bytes()).expect("a record")
    };
    let mut table = table(4);
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    let mut check = |uid: &PodUid, first: u32, length: u32, expected: Result<(), RecordError>| {
        assert_eq!(
            table.adopt(uid, &record(first, length)),
            expected,
            "{first} {length}"
        );
    };
    check(&a, 2 * BLOCK, BLOCK, Ok(()));
    check(&a, 2 * BLOCK, BLOCK, Ok(()));
    check(&a, 3 * BLOCK, BLOCK, Err(RecordError::Taken { uid: a.clone() }));
    check(&b, 2 * BLOCK, BLOCK, Err(RecordError::Taken { uid: b.clone() }));
    check(&b, 2 * BLOCK, 2 * BLOCK, Err(RecordError::Length(2 * BLOCK)));
    check(&b, BLOCK + 1, BLOCK, Err(RecordError::Offset(BLOCK + 1)));
    check(&b, 5 * BLOCK, BLOCK, Err(RecordError::OutOfRange(5 * BLOCK)));
    check(&b, 0, BLOCK, Err(RecordError::OutOfRange(0)));
    check(&b, 4 * BLOCK, BLOCK, Ok(()));
}

proptest! {
    /// However pods come and go, no two have the same range, and a range is found as long as one is free.
    #[test]
    fn no_two_pods_share(steps in prop::collection::vec((0_u8..12, any::<bool>(), any::<u64>()), 1..200)) {
        const BLOCKS: u32 = 8;
        let mut table = table(BLOCKS);
        let mut given: BTreeMap<PodUid, u32> = BTreeMap::new();
        for (pod, comes, from) in steps {
            let uid = PodUid::from(format!("pod-{pod}").as_str());
            if comes {
                let record = table.allocate(&uid, from);
                let has_room = given.len() < BLOCKS as usize || given.contains_key(&uid);
                prop_assert_eq!(record.is_some(), has_room);
                if let Some(record) = record {
                    let first = first_id(&record);
                    prop_assert!((BLOCK..=BLOCKS * BLOCK).contains(&first) && first.is_multiple_of(BLOCK));
                    let known = *given.entry(uid.clone()).or_insert(first);
                    prop_assert_eq!(known, first);
                    prop_assert_eq!(given.values().filter(|other| **other == first).count(), 1);
                }
            } else {
                table.release(&uid);
                given.remove(&uid);
            }
            prop_assert_eq!(table.pods().count(), given.len());
        }
    }
}
