//! A development CA and the certificate of the server. For a real CA, put its files in their place.

use std::collections::BTreeSet;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{Folder, SecretsError};
use crate::task::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the CA is good for.
const CA_DAYS: u32 = 3650;

/// How long the server's certificate is good for; longer is taken by no browser.
const SERVER_DAYS: u32 = 825;

fn failed(error: &rcgen::Error) -> SecretsError {
    SecretsError::Make {
        what: "certificate",
        why: error.to_string(),
    }
}

impl Folder<'_> {
    /// Makes what is missing of the CA and the server's certificate, and gives everybody the CA's.
    pub(super) fn certificates(
        &mut self,
        hosts: &[String],
        now: Timestamp,
    ) -> Result<(), SecretsError> {
        let key = self.read_or_make("ca/ca.key", || {
            Ok(KeyPair::generate()
                .map_err(|error| failed(&error))?
                .serialize_pem())
        })?;
        let key = KeyPair::from_pem(&key)
            .map_err(|_| self.unfit("ca/ca.key", "no private key".to_owned()))?;
        let params = ca(now);
        let ca = self.read_or_make("ca/ca.pem", || {
            let ca = params.self_signed(&key).map_err(|error| failed(&error))?;
            Ok(ca.pem())
        })?;
        if let Some(hosts) = self.hosts_to_certify(hosts, now)? {
            self.certify(&Issuer::new(params, key), hosts, now)?;
        }
        for file in ["nats/ca.pem", "service/ca.pem", "clients/ca.pem"] {
            if self.read(file)?.as_deref() != Some(&ca) {
                self.write(file, &ca)?;
            }
        }
        Ok(())
    }

    /// The hosts that a new certificate of the server must name; `None` if the one that is there will do, or is of
    /// another CA, as what is known of it then tells.
    fn hosts_to_certify(
        &self,
        hosts: &[String],
        now: Timestamp,
    ) -> Result<Option<BTreeSet<String>>, SecretsError> {
        let mut wanted: BTreeSet<String> = LOCAL_HOSTS.map(str::to_owned).into();
        wanted.extend(hosts.iter().cloned());
        let certificate = self.read("nats/server.pem")?;
        let (Some(certificate), Some(_)) = (certificate, self.read("nats/server.key")?) else {
            return Ok(Some(wanted));
        };
        let known = self.read(KNOWN)?.unwrap_or_default();
        let mut lines = known.lines();
        if lines.next() != Some(&digest(&certificate)) {
            return Ok(None);
        }
        let until = lines.next().and_then(Timestamp::parse);
        let named: BTreeSet<String> = lines.map(str::to_owned).collect();
        let ends_soon = until.is_none_or(|until| until.before(RENEWED_BEFORE) <= now);
        let is_good = !ends_soon && wanted.is_subset(&named);
        wanted.extend(named);
        Ok((!is_good).then_some(wanted))
    }

    fn certify(
        &mut self,
        issuer: &Issuer<'_, KeyPair>,
        hosts: BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), SecretsError> {
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let hosts: Vec<String> = hosts.into_iter().collect();
        let mut params = CertificateParams::new(hosts.clone()).map_err(|error| failed(&error))?;
        validity(&mut params, now, SERVER_DAYS);
        params
            .distinguished_name
            .push(DnType::CommonName, "nats-server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params
            .signed_by(&key, issuer)
            .map_err(|error| failed(&error))?
            .pem();
        let until = now.after(DAY * SERVER_DAYS);
        let known = format!("{}\n{until}\n{}\n", digest(&certificate), hosts.join("\n"));
        // Whatever this is interrupted at, no certificate stands beside the key of another.
        self.remove("nats/server.pem")?;
        self.write("nats/server.key", &key.serialize_pem())?;
        self.write("nats/server.pem", &certificate)?;
        self.write(KNOWN, &known)
    }
}

/// What is known of the server's certificate, if it was made here: the digest of its file, its end, and its hosts, a line each.
const KNOWN: &str = "nats/server.known";

/// The hosts that every certificate of the server names.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// How long before its end a certificate is replaced.
const RENEWED_BEFORE: Duration = DAY.saturating_mul(60);

pub(super) fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

fn validity(params: &mut CertificateParams, now: Timestamp, days: u32) {
    // A time stamp is in the range of the other type.
    let time =
        |at: Timestamp| OffsetDateTime::UNIX_EPOCH + time::Duration::microseconds(at.micros());
    // Clocks differ a little.
    params.not_before = time(now.before(DAY));
    params.not_after = time(now.after(DAY * days));
}

/// The same for the same key, so that what it signs later is good for the certificate that was made first.
fn ca(now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    validity(&mut params, now, CA_DAYS);
    params
        .distinguished_name
        .push(DnType::CommonName, "tasklatch development CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
