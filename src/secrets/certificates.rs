//! A development CA and the certificate of the server. For a real CA, put its files in their place.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

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
        let issuer = Issuer::new(params, key);
        if self.read("nats/server.pem")?.is_none() || self.read("nats/server.key")?.is_none() {
            let key = KeyPair::generate().map_err(|error| failed(&error))?;
            let params = server(hosts, now)?;
            let certificate = params
                .signed_by(&key, &issuer)
                .map_err(|error| failed(&error))?;
            self.write("nats/server.key", &key.serialize_pem())?;
            self.write("nats/server.pem", &certificate.pem())?;
        }
        for file in ["nats/ca.pem", "service/ca.pem", "clients/ca.pem"] {
            if self.read(file)?.as_deref() != Some(&ca) {
                self.write(file, &ca)?;
            }
        }
        Ok(())
    }
}

fn validity(params: &mut CertificateParams, now: Timestamp, days: u32) {
    // A time stamp is in the range of both.
    let now = OffsetDateTime::UNIX_EPOCH + time::Duration::microseconds(now.micros());
    // Clocks differ a little.
    params.not_before = now - DAY;
    params.not_after = now + DAY * days;
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

fn server(hosts: &[String], now: Timestamp) -> Result<CertificateParams, SecretsError> {
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    names.extend(
        hosts
            .iter()
            .filter(|host| !names.contains(host))
            .cloned()
            .collect::<Vec<_>>(),
    );
    let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    validity(&mut params, now, SERVER_DAYS);
    params
        .distinguished_name
        .push(DnType::CommonName, "nats-server");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}
