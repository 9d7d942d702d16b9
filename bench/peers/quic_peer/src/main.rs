//! QUIC by quinn, for captures: a server, and a client that fetches or sends.
//!
//! ```text
//! quic_peer serve 10.0.0.2:443
//! quic_peer bulk|upload|web 10.0.0.2:443 SECONDS
//! ```
//!
//! A stream begins with the number of bytes that the server shall send, eight bytes, the most
//! significant first; what else the client sends is read and forgotten. The client takes any
//! certificate: nothing here is secret.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Longest answer: more than a capture's time lasts.
const ENDLESS: u64 = 1 << 40;
const PIECE: [u8; 16_384] = [0; 16_384];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", at] => serve(at.parse()?).await,
        [shape @ ("bulk" | "upload" | "web"), at, seconds] => {
            let span = Duration::from_secs_f64(seconds.parse()?);
            // What is under way when the time is over ends with the connection.
            let _late = tokio::time::timeout(span, call(shape, at.parse()?)).await;
            Ok(())
        }
        _ => Err("usage: quic_peer serve ADDRESS:PORT | bulk|upload|web ADDRESS:PORT SECONDS".into()),
    }
}

async fn serve(at: SocketAddr) -> Result<()> {
    let own = rcgen::generate_simple_self_signed(vec!["peer.example".into()])?;
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let endpoint = Endpoint::server(config, at)?;
    while let Some(incoming) = endpoint.accept().await {
        let Ok(connection) = incoming.await else { continue };
        while let Ok((out, input)) = connection.accept_bi().await {
            tokio::spawn(answer(out, input));
        }
    }
    Ok(())
}

async fn answer(mut out: quinn::SendStream, mut input: quinn::RecvStream) -> Result<()> {
    let mut wanted = [0; 8];
    input.read_exact(&mut wanted).await?;
    let mut left = u64::from_be_bytes(wanted);
    while left > 0 {
        let piece = &PIECE[..PIECE.len().min(left as usize)];
        out.write_all(piece).await?;
        left -= piece.len() as u64;
    }
    out.finish()?;
    let mut buffer = PIECE;
    while input.read(&mut buffer).await?.is_some() {}
    Ok(())
}

async fn call(shape: &str, at: SocketAddr) -> Result<()> {
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(at, "peer.example")?.await?;
    match shape {
        "bulk" => fetch(&connection, ENDLESS).await,
        "upload" => upload(&connection).await,
        _ => web(&connection).await,
    }
}

async fn fetch(connection: &Connection, bytes: u64) -> Result<()> {
    let (mut out, mut input) = connection.open_bi().await?;
    out.write_all(&bytes.to_be_bytes()).await?;
    out.finish()?;
    let mut buffer = PIECE;
    while input.read(&mut buffer).await?.is_some() {}
    Ok(())
}

async fn upload(connection: &Connection) -> Result<()> {
    let (mut out, _input) = connection.open_bi().await?;
    out.write_all(&0_u64.to_be_bytes()).await?;
    loop {
        out.write_all(&PIECE).await?;
    }
}

/// Pages: a few files of 2 to 250 kB at a time, and time to read.
async fn web(connection: &Connection) -> Result<()> {
    // Drawn anew in each call; captures are told apart by their files, not by a seed.
    let start = Instant::now();
    loop {
        let draw = || u64::from(start.elapsed().subsec_nanos()) / 7 % 251;
        let files = 1 + draw() % 5;
        for _ in 0..files {
            fetch(connection, 2_000 + 1_000 * draw()).await?;
        }
        tokio::time::sleep(Duration::from_millis(100 + 6 * draw())).await;
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Takes any certificate.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
