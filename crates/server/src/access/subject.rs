//! The subject of a client's certificate.
//!
//! Owns the reading of DER into a user: the last common name is the name, every organization a group, as upstream reads them. It
//! must not judge the certificate.

use rubelet_x509::element;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// 1.3.6.1.4.1.57683.2
const USER_UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
    /// `None` for a value that is no text.
    uids: Vec<Option<String>>,
}

impl Subject {
    /// From a sequence of sets of (kind, value), without the outer tag. `None` where it is no such sequence.
    pub(super) fn parse(mut subject: &[u8]) -> Option<Self> {
        let mut found = Self::default();
        while !subject.is_empty() {
            let (tag, mut set, rest) = element(subject)?;
            subject = rest;
            if tag != SET {
                return None;
            }
            while !set.is_empty() {
                let (tag, attribute, rest) = element(set)?;
                set = rest;
                let (kind_tag, kind, value) = element(attribute)?;
                if tag != SEQUENCE || kind_tag != OBJECT_IDENTIFIER {
                    return None;
                }
                let (value_tag, value, _) = element(value)?;
                found.take(kind, text(value_tag, value));
            }
        }
        Some(found)
    }

    fn take(&mut self, kind: &[u8], value: Option<String>) {
        if kind == USER_UID {
            self.uids.push(value);
        } else if let Some(value) = value {
            match kind {
                COMMON_NAME => self.common_name = value,
                ORGANIZATION => self.organizations.push(value),
                _ => {}
            }
        }
    }

    /// The user's UID, empty where there is none.
    pub(super) fn uid(&self) -> Result<&str, &'static str> {
        match &self.uids[..] {
            [] => Ok(""),
            [None] => Err("its UID is no text"),
            [Some(uid)] if uid.is_empty() => Err("its UID is empty"),
            [Some(uid)] => Ok(uid),
            _ => Err("it has more than one UID"),
        }
    }
}

/// A value of one of the kinds of text.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, NumericString, PrintableString, T61String, IA5String
        0x0c | 0x12 | 0x13 | 0x14 | 0x16 => String::from_utf8(value.to_vec()).ok(),
        // BMPString: two bytes for each character
        0x1e => {
            let (units, rest) = value.as_chunks::<2>();
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn subject_of(names: &[(DnType, DnValue)]) -> Subject {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        for (kind, name) in names {
            parameters.distinguished_name.push(kind.clone(), name.clone());
        }
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let subject = rubelet_x509::subject(certificate.der()).unwrap();
        Subject::parse(subject).unwrap()
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn names_and_groups_are_found() {
        let check = |names: &[(DnType, DnValue)], name: &str, groups: &[&str]| {
            let subject = subject_of(names);
            assert_eq!(subject.common_name, name, "{names:?}");
            assert_eq!(subject.organizations, groups, "{names:?}");
            assert_eq!(subject.uid(), Ok(""));
        };
        let (name, group) = (DnType::CommonName, DnType::OrganizationName);
        check(&[], "", &[]);
        check(&[(name.clone(), utf8("me"))], "me", &[]);
        check(
            &[
                (group.clone(), utf8("system:masters")),
                (name.clone(), utf8("me")),
            ],
            "me",
            &["system:masters"],
        );
        check(&[(group, utf8("g"))], "", &["g"]);
        let long = "x".repeat(300);
        check(&[(name.clone(), utf8(&long))], &long, &[]);
        check(
            &[(name.clone(), DnValue::BmpString("mé".try_into().unwrap()))],
            "mé",
            &[],
        );
        check(
            &[(name, DnValue::PrintableString("me".try_into().unwrap()))],
            "me",
            &[],
        );
    }

    /// One attribute, with short lengths.
    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, content: &[u8]| {
            let mut element = vec![tag, u8::try_from(content.len()).unwrap()];
            element.extend_from_slice(content);
            element
        };
        let pair = [wrap(OBJECT_IDENTIFIER, kind), wrap(tag, value)].concat();
        wrap(SET, &wrap(SEQUENCE, &pair))
    }

    #[test]
    fn what_stands_there_more_than_once_is_read_as_upstream_reads_it() {
        let names = [
            attribute(COMMON_NAME, 0x0c, b"first"),
            attribute(ORGANIZATION, 0x13, b"a"),
            attribute(COMMON_NAME, 0x0c, b"last"),
            attribute(ORGANIZATION, 0x16, b"b"),
            // No text: left out.
            attribute(ORGANIZATION, 0x04, b"c"),
        ];
        let subject = Subject::parse(&names.concat()).unwrap();
        assert_eq!(subject.common_name, "last");
        assert_eq!(subject.organizations, ["a", "b"]);
        let uid = |parts: &[Vec<u8>]| Subject::parse(&parts.concat()).unwrap();
        let one = attribute(USER_UID, 0x0c, b"u-1");
        assert_eq!(uid(std::slice::from_ref(&one)).uid(), Ok("u-1"));
        assert!(uid(&[one.clone(), one]).uid().is_err());
        assert!(uid(&[attribute(USER_UID, 0x0c, b"")]).uid().is_err());
        assert!(uid(&[attribute(USER_UID, 0x04, b"x")]).uid().is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_upset_the_reader(bytes: Vec<u8>) {
            let _ = Subject::parse(&bytes);
        }
    }
}
