//! What a store promises to one process: entries whole or not at all, room made in order, damage found.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use coremill_store::{Entry, ErrorKind, Key, Options, Store, Value};

const MEGABYTE: usize = 1 << 20;

fn key(number: usize) -> Key {
    Key::new([&b"test"[..], &number.to_le_bytes()])
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let root = directory.path().join("store");
    (directory, root)
}

fn open(root: &Path, limit: usize) -> Store {
    Store::open(root, &Options { limit: limit as u64, durable: false }).expect("opens")
}

/// An entry of a megabyte in two files.
fn put(store: &Store, number: usize) -> Entry {
    let make = |place: &Path| {
        fs::create_dir(place.join("weights"))?;
        fs::write(place.join("weights/weight.bin"), vec![number as u8; MEGABYTE - 10])?;
        fs::write(place.join("model.mil"), [number as u8; 10])
    };
    store.get_or_insert(&key(number), "model", &format!("number {number}"), make).expect("stored")
}

fn there(store: &Store, numbers: std::ops::Range<usize>) -> Vec<usize> {
    numbers
        .filter(|number| store.root().join("entries").join(key(*number).to_string()).exists())
        .collect()
}

#[test]
fn entries_are_found_again() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    assert!(store.get(&key(1)).expect("looked up").is_none());
    let entry = put(&store, 1);
    assert_eq!(entry.bytes(), MEGABYTE as u64);
    let again = open(&root, 10 * MEGABYTE);
    let found = again.get(&key(1)).expect("looked up").expect("found");
    assert_eq!(found.path(), entry.path());
    assert_eq!(fs::read(found.path().join("model.mil")).expect("read"), [1; 10]);
    let made = AtomicUsize::new(0);
    let make = |_: &Path| -> io::Result<()> {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    store.get_or_insert(&key(1), "model", "number 1", make).expect("found");
    assert_eq!(made.into_inner(), 0, "what is there is not made again");
    let listed = again.list().expect("listed");
    assert_eq!((listed.len(), &*listed[0].label, listed[0].uses), (1, "number 1", 3));
    assert_eq!(again.size().expect("known"), MEGABYTE as u64);
    let verified = again.verify().expect("verified");
    assert_eq!((verified.sound, verified.damaged.len()), (1, 0));
}

#[test]
fn what_fails_leaves_nothing() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    let failing = |place: &Path| {
        fs::write(place.join("half"), "a half")?;
        Err(io::Error::other("the compiler gave up"))
    };
    let error = store.get_or_insert(&key(1), "model", "broken", failing).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Make);
    assert_eq!(error.to_string(), "cannot make the entry `broken`: the compiler gave up");
    let full = |_: &Path| Err(io::Error::from(io::ErrorKind::StorageFull));
    let error = store.get_or_insert(&key(1), "model", "large", full).expect_err("it fails");
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.hint().is_some_and(|hint| hint.contains("prune the cache")));
    let nothing = |_: &Path| io::Result::Ok(());
    let error = store.get_or_insert(&key(1), "model", "empty", nothing).expect_err("it fails");
    assert_eq!(error.to_string(), "nothing was written for the entry `empty`");
    assert!(store.get(&key(1)).expect("looked up").is_none());
    for directory in ["entries", "staging", "trash"] {
        let left = fs::read_dir(root.join(directory)).expect("read").count();
        assert_eq!(left, 0, "{directory} is empty");
    }
    drop(put(&store, 1));
}

#[test]
fn the_least_recently_used_goes_first() {
    let (_directory, root) = scratch();
    let store = open(&root, 3 * MEGABYTE);
    (0..3).for_each(|number| drop(put(&store, number)));
    assert!(store.get(&key(0)).expect("looked up").is_some());
    drop(put(&store, 3));
    assert_eq!(there(&store, 0..4), [0, 2, 3]);
    // Clocks do not matter while the index is there: this one says that 2 was used in a far future.
    let future = SystemTime::now() + Duration::from_secs(1 << 30);
    {
        let name = key(2).to_string();
        let lock = File::options().write(true).open(root.join("locks").join(name + ".use"));
        lock.and_then(|lock| lock.set_modified(future)).expect("set");
    }
    drop(put(&store, 4));
    assert_eq!(there(&store, 0..5), [0, 3, 4]);
    assert_eq!(store.prune(MEGABYTE as u64).expect("pruned"), MEGABYTE as u64);
    assert_eq!(there(&store, 0..5), [4]);
    assert_eq!(store.purge().expect("purged"), 0);
    assert!(there(&store, 0..5).is_empty());
    assert_eq!(fs::read_dir(root.join("locks")).expect("read").count(), 0, "no lock is left");
}

#[test]
fn what_is_in_use_stays() {
    let (_directory, root) = scratch();
    let store = open(&root, 2 * MEGABYTE);
    let held = [put(&store, 0), put(&store, 1)];
    // Another process would see the same locks.
    let other = open(&root, 2 * MEGABYTE);
    // One passes the limit, as those that are there do not.
    let third = put(&other, 2);
    let make = |place: &Path| fs::write(place.join("data"), "x");
    let error = other.get_or_insert(&key(3), "model", "m", make).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("3145728 bytes that are in use; its limit is 2097152"));
    assert_eq!(other.purge().expect("purged"), 3 * MEGABYTE as u64);
    assert!(!other.remove(&key(0)).expect("tried"));
    for entry in held.iter().chain([&third]) {
        assert_eq!(fs::read(entry.path().join("model.mil")).expect("read").len(), 10);
    }
    drop(held);
    assert_eq!(other.prune(0).expect("pruned"), MEGABYTE as u64);
    drop(third);
    // What is larger than the limit is kept alone.
    let large = |place: &Path| fs::write(place.join("data"), vec![0; 5 * MEGABYTE]);
    drop(store.get_or_insert(&key(9), "model", "large", large).expect("stored"));
    assert_eq!(store.size().expect("known"), 5 * MEGABYTE as u64);
    drop(put(&store, 1));
    assert_eq!(store.size().expect("known"), MEGABYTE as u64);
}

#[test]
fn damaged_entries_are_made_again() {
    let file = |root: &Path, name: &str| {
        root.join("entries").join(key(1).to_string()).join("content").join(name)
    };
    type Damage = (&'static str, Box<dyn Fn(&Path)>);
    let damages: [Damage; 6] = [
        (
            "cut",
            Box::new(move |root| {
                let file = File::options().write(true).open(file(root, "model.mil"));
                file.and_then(|file| file.set_len(3)).expect("cut");
            }),
        ),
        (
            "changed",
            Box::new(move |root| {
                fs::write(file(root, "model.mil"), "other byte").expect("written");
            }),
        ),
        (
            "removed",
            Box::new(move |root| {
                fs::remove_file(file(root, "weights/weight.bin")).expect("removed");
            }),
        ),
        (
            "added",
            Box::new(move |root| {
                fs::write(file(root, "weights/more.bin"), "more").expect("written");
            }),
        ),
        (
            "manifest",
            Box::new(|root| {
                let entry = root.join("entries").join(key(1).to_string());
                fs::write(entry.join("manifest.json"), "{").expect("written");
            }),
        ),
        (
            "emptied",
            Box::new(|root| {
                let entry = root.join("entries").join(key(1).to_string());
                fs::remove_dir_all(&entry).and_then(|()| fs::create_dir(&entry)).expect("emptied");
            }),
        ),
    ];
    for (name, damage) in damages {
        let (_directory, root) = scratch();
        let store = open(&root, 10 * MEGABYTE);
        drop(put(&store, 1));
        damage(&root);
        assert!(store.get(&key(1)).expect("looked up").is_none(), "{name} is found");
        let entry = put(&store, 1);
        assert_eq!(fs::read(entry.path().join("model.mil")).expect("read"), [1; 10], "{name}");
        damage(&root);
        let verified = store.verify().expect("verified");
        assert_eq!(verified.damaged.len(), 1, "{name}");
        assert!(!verified.damaged[0].removed, "{name}: it is in use");
        // Whoever asks now gets a sound one beside it.
        let again = put(&store, 1);
        assert_eq!(fs::read(again.path().join("model.mil")).expect("read"), [1; 10], "{name}");
    }
}

#[test]
fn verify_finds_what_changed_in_secret() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    let path = put(&store, 1).path().join("model.mil");
    let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("known");
    fs::write(&path, "bit rotted").expect("written");
    let file = File::options().write(true).open(&path);
    file.and_then(|file| file.set_modified(modified)).expect("set");
    let verified = store.verify().expect("verified");
    assert_eq!(verified.damaged.len(), 1);
    assert_eq!(verified.damaged[0].reason, "`model.mil` holds other bytes than were written");
    assert!(verified.damaged[0].removed);
    // A copied entry has other times and the same bytes.
    drop(put(&store, 2));
    let path = put(&store, 2).path().join("model.mil");
    fs::write(path, [2; 10]).expect("written");
    assert!(store.get(&key(2)).expect("looked up").is_some());
}

#[test]
fn a_damaged_index_is_made_again() {
    let damages: [(&str, fn(&Path)); 6] = [
        ("emptied", |index| fs::write(index, "").expect("written")),
        ("cut", |index| {
            let file = File::options().write(true).open(index).expect("opened");
            file.set_len(5000).expect("cut");
        }),
        ("rubbish", |index| fs::write(index, vec![0x5a; 20_000]).expect("written")),
        ("middle", |index| {
            let mut bytes = fs::read(index).expect("read");
            bytes.iter_mut().skip(4096).for_each(|byte| *byte ^= 0x77);
            fs::write(index, bytes).expect("written");
        }),
        ("deleted", |index| fs::remove_file(index).expect("removed")),
        ("directory", |index| {
            fs::remove_file(index).and_then(|()| fs::create_dir(index)).expect("made");
        }),
    ];
    for (name, damage) in damages {
        for reopen in [false, true] {
            let (_directory, root) = scratch();
            let mut store = open(&root, 3 * MEGABYTE);
            store.values("test").set("a", 1).expect("set");
            (0..3).for_each(|number| drop(put(&store, number)));
            if reopen {
                drop(store);
                damage(&root.join("index.db"));
                store = open(&root, 3 * MEGABYTE);
            } else {
                damage(&root.join("index.db"));
            }
            for number in 0..3 {
                let found = store.get(&key(number)).expect("looked up");
                assert!(found.is_some(), "{name}, reopened {reopen}: {number} is there");
            }
            drop(put(&store, 3));
            let size = store.size().expect("known");
            assert_eq!(size, 3 * MEGABYTE as u64, "{name}, reopened {reopen}");
            assert_eq!(there(&store, 0..4), [1, 2, 3], "{name}, reopened {reopen}");
            store.values("test").set("a", 2).expect("set");
            let value = store.values("test").get("a").expect("read");
            assert_eq!(value, Some(Value::Integer(2)), "{name}, reopened {reopen}");
        }
    }
}

#[test]
fn the_directory_may_go_under_way() {
    let (_directory, root) = scratch();
    let store = open(&root, 3 * MEGABYTE);
    drop(put(&store, 1));
    fs::remove_dir_all(&root).expect("removed");
    assert!(store.get(&key(1)).expect("looked up").is_none());
    drop(put(&store, 1));
    assert!(store.get(&key(1)).expect("looked up").is_some());
}

#[test]
fn what_dead_processes_left_is_swept() {
    let (_directory, root) = scratch();
    let store = open(&root, 10 * MEGABYTE);
    drop(put(&store, 1));
    let half = root.join("staging").join(key(2).to_string()).join("content");
    fs::create_dir_all(&half).expect("made");
    fs::write(half.join("half"), "a half").expect("written");
    fs::write(root.join("staging/other"), "rubbish").expect("written");
    fs::create_dir_all(root.join("trash/old/deep")).expect("made");
    fs::write(root.join("locks").join(key(2).to_string() + ".make"), "").expect("written");
    drop(open(&root, 10 * MEGABYTE));
    for (directory, left) in [("staging", 0), ("trash", 0), ("locks", 1), ("entries", 1)] {
        let found = fs::read_dir(root.join(directory)).expect("read").count();
        assert_eq!(found, left, "{directory}");
    }
}

#[test]
fn threads_that_want_the_same_make_it_once() {
    let (_directory, root) = scratch();
    let made = AtomicUsize::new(0);
    let stores: Vec<Store> = (0..8).map(|_| open(&root, 10 * MEGABYTE)).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| {
                for number in 0..5 {
                    let make = |place: &Path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        fs::write(place.join("data"), number.to_string())
                    };
                    let entry = store.get_or_insert(&key(number), "model", "m", make);
                    let data = entry.expect("stored").path().join("data");
                    assert_eq!(fs::read_to_string(data).expect("read"), number.to_string());
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 5);
}

#[test]
fn values_are_kept_and_counted() {
    let (_directory, root) = scratch();
    let store = open(&root, MEGABYTE);
    let values = store.values("settings");
    values.set("text", "é").expect("set");
    values.set("number", i64::MIN).expect("set");
    values.set("bytes", &b"\0\xff"[..]).expect("set");
    store.values("others").set("text", "other").expect("set");
    assert_eq!(values.get("number").expect("read"), Some(Value::Integer(i64::MIN)));
    assert_eq!(values.get("bytes").expect("read"), Some(Value::Bytes(b"\0\xff".to_vec())));
    assert_eq!(values.get("text").expect("read"), Some(Value::Text("é".to_owned())));
    assert_eq!(values.get("none").expect("read"), None);
    values.set("text", "new").expect("set");
    let listed = values.list().expect("listed");
    let found: Vec<_> = listed.iter().map(|stored| (&*stored.key, stored.uses)).collect();
    assert_eq!(found, [("text", 3), ("bytes", 2), ("number", 2)]);
    assert!(values.remove("text").expect("removed"));
    assert!(!values.remove("text").expect("removed"));
    assert_eq!(store.values("others").get("text").expect("read"), Some(Value::from("other")));
    let error = values.set("large", &vec![0; MEGABYTE + 1][..]).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Input);
    store.purge().expect("purged");
    assert_eq!(values.list().expect("listed"), []);
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let (_directory, root) = scratch();
    fs::create_dir_all(root.join("trash")).expect("made");
    fs::write(root.join("trash/precious"), "precious").expect("written");
    let error = Store::open(&root, &Options::default()).map(|_| ()).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().ends_with("is not a cache of coremill"), "{error}");
    assert!(root.join("trash/precious").exists());
    assert_eq!(fs::read_dir(&root).expect("read").count(), 1);
    fs::write(root.join("coremill-store"), "2\n").expect("written");
    let error = Store::open(&root, &Options::default()).map(|_| ()).expect_err("refused");
    assert!(error.to_string().ends_with("has the form of another version of coremill"), "{error}");
}
