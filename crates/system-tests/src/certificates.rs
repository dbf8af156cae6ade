//! Certificates for tests, by openssl(1), named as NBD's programs name them.

use std::fs;
use std::path::Path;
use std::process::Command;

fn openssl(at: &Path, args: &str) {
    let mut c = Command::new("openssl");
    let said = c.args(args.split(' ')).current_dir(at).output().unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "openssl {args}: {error}");
}

/// Makes a folder with an authority, a server's certificate for `localhost` and a client's, both signed by it: `ca-cert.pem`, `server-cert.pem`,
/// `server-key.pem`, `client-cert.pem`, `client-key.pem`.
pub fn make(at: &Path) {
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    fs::create_dir_all(at).unwrap();
    openssl(
        at,
        &format!("req -x509 {KEY} -days 2 -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem"),
    );
    for who in ["server", "client"] {
        fs::write(
            at.join("more"),
            "subjectAltName=DNS:localhost,IP:127.0.0.1\n",
        )
        .unwrap();
        openssl(
            at,
            &format!("req {KEY} -subj /CN={who} -keyout {who}-key.pem -out {who}.csr"),
        );
        openssl(
            at,
            &format!(
                "x509 -req -in {who}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile more -out {who}-cert.pem"
            ),
        );
    }
}
