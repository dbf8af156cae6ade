//! Two implementations of what encryption and checksums need, side by side: `cargo bench -p codec`.
//!
//! Every pair is measured in turns, in time of the processor, not of the clock, and the best turn counts: so other work on
//! the machine makes no difference between the two.
#![forbid(unsafe_code)]

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::AesGcm;
use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hmac, pbkdf2};
use ccm::consts::{U12, U16};
use hmac_pure::Mac;
use rustix::time::{clock_gettime, ClockId};
use sha2::Digest;
use std::hint::black_box;

use ::hmac as hmac_pure;

/// Turns of each side.
const TURNS: usize = 40;
/// Seconds of one turn, about.
const TURN: f64 = 0.003;

fn now() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Seconds of one call, of `n` calls.
fn time(n: usize, f: &mut dyn FnMut()) -> f64 {
    let start = now();
    (0..n).for_each(|_| f());
    (now() - start) / n as f64
}

/// A line: both sides over `bytes` bytes.
fn pair(name: &str, bytes: usize, pure: &mut dyn FnMut(), lc: &mut dyn FnMut()) {
    let n = |f: &mut dyn FnMut()| ((TURN / time(3, f).max(1e-9)) as usize).clamp(1, 1 << 20);
    let (n_pure, n_lc) = (n(pure), n(lc));
    let (mut best_pure, mut best_lc) = (f64::MAX, f64::MAX);
    for _ in 0..TURNS {
        best_pure = best_pure.min(time(n_pure, pure));
        best_lc = best_lc.min(time(n_lc, lc));
    }
    let speed = |t: f64| bytes as f64 / t / 1e9;
    println!(
        "{name:24} {bytes:7} {:8.3} {:8.3} GB/s {:9.0} {:9.0} ns {:6.2}",
        speed(best_pure),
        speed(best_lc),
        best_pure * 1e9,
        best_lc * 1e9,
        best_pure / best_lc
    );
}

fn gcm<C: KeyInit + AeadInOut<NonceSize = U12, TagSize = U16>>(
    name: &str,
    algorithm: &'static Algorithm,
    bytes: usize,
) {
    let key = vec![3; algorithm.key_len()];
    let iv = [1; 12];
    let nonce = || Nonce::assume_unique_for_key(iv);
    let aad = [2; 48];
    let (mut a, mut b) = (vec![7; bytes], vec![7; bytes]);
    let pure = C::new_from_slice(&key).expect("a key");
    let make = || LessSafeKey::new(UnboundKey::new(algorithm, &key).expect("a key"));
    let lc = make();
    pair(
        &format!("{name} seal"),
        bytes,
        &mut || {
            let mac = pure.encrypt_inout_detached((&iv).into(), &aad, (&mut a[..]).into());
            black_box(mac.is_ok());
        },
        &mut || {
            let mac = lc.seal_in_place_separate_tag(nonce(), Aad::from(&aad), &mut b);
            black_box(mac.is_ok());
        },
    );
    let mut sealed = vec![7; bytes];
    let mac = lc
        .seal_in_place_separate_tag(nonce(), Aad::from(&aad), &mut sealed)
        .expect("a block");
    let mac: [u8; 16] = mac.as_ref().try_into().expect("16 bytes");
    pair(
        &format!("{name} copy, open"),
        bytes,
        &mut || {
            a.copy_from_slice(&sealed);
            let r =
                pure.decrypt_inout_detached((&iv).into(), &aad, (&mut a[..]).into(), (&mac).into());
            assert!(r.is_ok());
        },
        &mut || {
            b.copy_from_slice(&sealed);
            let r = lc.open_in_place_separate_tag(nonce(), Aad::from(&aad), &mac, &mut b);
            assert!(r.is_ok());
        },
    );
    if bytes == 4096 {
        pair(
            &format!("{name} new key"),
            algorithm.key_len(),
            &mut || {
                black_box(C::new_from_slice(&key).is_ok());
            },
            &mut || {
                black_box(make());
            },
        );
    }
}

fn sha<D: Digest>(name: &str, algorithm: &'static digest::Algorithm, bytes: usize) {
    let data = vec![7; bytes];
    pair(
        name,
        bytes,
        &mut || {
            black_box(D::digest(&data));
        },
        &mut || {
            black_box(digest::digest(algorithm, &data));
        },
    );
}

fn main() {
    println!("{:24} {:>7} {:>8} {:>8}", "", "bytes", "RustCr.", "AWS-LC");
    for bytes in [512, 4096, 16384, 131_072] {
        gcm::<AesGcm<aes::Aes128, U12>>("aes-128-gcm", &aws_lc_rs::aead::AES_128_GCM, bytes);
        gcm::<AesGcm<aes::Aes256, U12>>("aes-256-gcm", &aws_lc_rs::aead::AES_256_GCM, bytes);
        sha::<sha2::Sha256>("sha256", &digest::SHA256, bytes);
        sha::<sha2::Sha512>("sha512", &digest::SHA512, bytes);
        sha::<sha2::Sha512_256>("sha512/256", &digest::SHA512_256, bytes);
        let (key, data) = ([5; 64], vec![7; bytes]);
        let kept = hmac::Key::new(hmac::HMAC_SHA512, &key);
        pair(
            "hmac-sha512",
            bytes,
            &mut || {
                let mut m = hmac_pure::Hmac::<sha2::Sha512>::new_from_slice(&key).expect("a key");
                m.update(&data);
                black_box(m.finalize().into_bytes());
            },
            &mut || {
                black_box(hmac::sign(&kept, &data));
            },
        );
    }
    // As many iterations as one turn takes; times are for all of them.
    let (salt, rounds) = ([1; 8], 2000);
    let (mut a, mut b) = ([0; 32], [0; 32]);
    pair(
        "pbkdf2-sha1, 2000 rounds",
        32,
        &mut || ::pbkdf2::pbkdf2_hmac::<sha1::Sha1>(b"correct horse", &salt, rounds, &mut a),
        &mut || {
            let rounds = rounds.try_into().expect("not zero");
            pbkdf2::derive(
                pbkdf2::PBKDF2_HMAC_SHA1,
                rounds,
                &salt,
                b"correct horse",
                &mut b,
            );
        },
    );
    assert_eq!(a, b);
}
