//! Which certificates of clients are accepted.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

/// What is asked of clients, by the names of Go's `tls.ClientAuthType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantNames)]
pub(super) enum ClientAuth {
    NoClientCert,
    RequestClientCert,
    /// An older name of the next.
    RequireClientCert,
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

impl ClientAuth {
    /// Returns whether certificates are verified, for which authorities are needed.
    pub fn verifies(self) -> bool {
        matches!(self, ClientAuth::VerifyClientCertIfGiven | ClientAuth::RequireAndVerifyClientCert)
    }

    /// Returns whether a client without a certificate is refused.
    pub fn requires(self) -> bool {
        use ClientAuth::{RequireAndVerifyClientCert, RequireAnyClientCert, RequireClientCert};
        matches!(self, RequireClientCert | RequireAnyClientCert | RequireAndVerifyClientCert)
    }
}

/// Returns what decides about clients' certificates; `None` if they are not asked for one.
///
/// # Errors
/// Fails if certificates are to be verified and no authority is of use.
pub(super) fn verifier(
    auth: ClientAuth,
    authorities: RootCertStore,
    names: Option<Vec<String>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, rustls::server::VerifierBuilderError> {
    let authorities = || {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider));
        if auth.requires() { builder } else { builder.allow_unauthenticated() }.build()
    };
    if auth == ClientAuth::NoClientCert {
        return Ok(None);
    }
    Ok(Some(Arc::new(Verifier {
        required: auth.requires(),
        authorities: auth.verifies().then(authorities).transpose()?,
        names,
        algorithms: provider.signature_verification_algorithms,
    })))
}

/// Accepts certificates whose key the client has.
#[derive(Debug)]
struct Verifier {
    required: bool,
    /// What decides by who issued them; `None` if that, and whether they have expired, does not matter.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    /// The alternative names of which they need one.
    names: Option<Vec<String>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Returns whether a certificate has one of these alternative names.
fn has_name(certificate: &CertificateDer<'_>, names: &[String]) -> Result<bool, Error> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let is_listed = |name: &str| names.iter().any(|listed| listed == name);
    let has_address = |listed: &String| {
        let address = listed.parse::<IpAddr>().ok();
        let name = address.map(|address| ServerName::IpAddress(address.into()));
        name.is_some_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    };
    Ok(certificate.valid_dns_names().any(is_listed)
        || certificate.valid_uri_names().any(is_listed)
        || names.iter().any(has_address))
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.as_ref().map_or(&[], |authorities| authorities.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(authorities) = &self.authorities {
            authorities.verify_client_cert(end_entity, intermediates, now)?;
        }
        match &self.names {
            Some(names) if !has_name(end_entity, names)? => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
