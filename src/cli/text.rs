//! Text for people: strangers' text made harmless, and times told as people tell them.

use crate::task::Timestamp;

/// So many of something, whose name takes an s where it is not one.
pub(super) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Text of strangers for a terminal: what a terminal would act on, or what turns the reading order around, is shown as
/// its code instead. Line breaks are among it.
pub(super) fn visible(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, c| {
            if is_plain(c) {
                shown.push(c);
            } else {
                shown.extend(c.escape_unicode());
            }
            shown
        })
}

/// As [`visible`], with line breaks and tabs as spaces.
pub(super) fn one_line(text: &str) -> String {
    visible(&text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " "))
}

/// As [`one_line`], cut where it is longer than `chars`.
pub(super) fn cut(text: &str, chars: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(chars) {
        Some(_) => line
            .chars()
            .take(chars.saturating_sub(1))
            .chain(['…'])
            .collect(),
        None => line,
    }
}

/// As [`visible`], line by line.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| visible(&line.replace('\t', "    ")))
        .collect()
}

fn is_plain(c: char) -> bool {
    let turns_order = matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks_line = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || turns_order || breaks_line)
}

/// How long ago, or how soon: `3m ago`, `in 2h`, `now`.
pub(super) fn relative(then: Timestamp, now: Timestamp) -> String {
    // To the nearest second, so that a deadline of 30m from now is told as that.
    let micros = now.micros() - then.micros();
    let seconds = (micros + 500_000).div_euclid(1_000_000);
    let amount = match seconds.unsigned_abs() {
        0 => return "now".to_owned(),
        s @ ..60 => format!("{s}s"),
        s @ ..3_600 => format!("{}m", s / 60),
        s @ ..86_400 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    };
    if seconds < 0 {
        format!("in {amount}")
    } else {
        format!("{amount} ago")
    }
}

/// An instant to the second, with how long ago that is.
pub(super) fn instant(then: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", to_the_second(then), relative(then, now))
}

/// An instant to the second: `2026-11-30T07:41:22Z`.
pub(super) fn to_the_second(then: Timestamp) -> String {
    let text = then.to_string();
    text.split('.')
        .next()
        .map_or_else(|| text.clone(), |seconds| format!("{seconds}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left_in_strangers_text() {
        let hostile = "a\u{1b}[2Jb\u{7}c\rd\ne\u{9b}31mf\u{7f}g\u{202e}h\u{2028}i\tj";
        for shown in [
            visible(hostile),
            one_line(hostile),
            cut(hostile, 200),
            lines(hostile).concat(),
        ] {
            assert!(shown.chars().all(is_plain), "{shown:?}");
            assert!(shown.contains(r"a\u{1b}[2Jb\u{7}c"), "{shown:?}");
        }
        assert_eq!(one_line("a\r\nb\tc"), "a b c");
    }

    #[test]
    fn harmless_text_of_any_script_is_shown_as_it_is() {
        let text = "Überprüft: 日本語, עברית, 👩‍👩‍👧 ok";
        assert_eq!(visible(text), text);
    }

    #[test]
    fn long_text_is_cut_by_characters() {
        assert_eq!(cut("ääää", 4), "ääää");
        assert_eq!(cut("äääää", 4), "äää…");
    }

    #[test]
    fn times_are_told_in_the_largest_whole_unit() {
        let now = Timestamp::from_micros(1_000_000_000_000_000).unwrap();
        for (seconds, expected) in [
            (0, "now"),
            (59, "59s ago"),
            (185, "3m ago"),
            (7_300, "2h ago"),
            (200_000, "2d ago"),
            (-90, "in 1m"),
        ] {
            let then = Timestamp::from_micros(now.micros() - seconds * 1_000_000).unwrap();
            assert_eq!(relative(then, now), expected);
        }
        assert_eq!(to_the_second(now), "2001-09-09T01:46:40Z");
    }
}
