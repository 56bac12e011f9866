//! `strftime_now`: the date that a few templates print.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `strftime_now(format)`, in UTC and in the C locale.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, now)
}

/// Formats a time in seconds since 1970.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, of_year) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let weekday = ((days + 4) % 7) as usize;
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let half = if hour < 12 { "AM" } else { "PM" };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // glibc's `-` drops the padding.
        let mut directive = chars.next();
        let plain = directive == Some('-');
        if plain {
            directive = chars.next();
        }
        let two = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') if !plain => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two(twelve),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => half.into(),
            Some('j') if !plain => format!("{of_year:03}"),
            Some('B') => MONTHS[month as usize - 1].into(),
            Some('b' | 'h') => MONTHS[month as usize - 1][..3].into(),
            Some('A') => DAYS[weekday].into(),
            Some('a') => DAYS[weekday][..3].into(),
            Some('w') => weekday.to_string(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".into(),
            other => {
                let what = other.map_or("at the end".to_owned(), |c| format!("`%{c}`"));
                let what = format!("strftime_now: directive {what} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        });
    }
    Ok(out)
}

/// Year, month, day and day of the year, from 1, of a day since 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let of_year = days + 1;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations by Python's `datetime.fromtimestamp(t, UTC).strftime(f)`.
    #[test]
    fn dates_are_pythons() {
        let all = "%Y-%m-%d %H:%M:%S %I %p %j %B %b %A %a %w %y %F %T %e %-d %-m %%";
        let cases = [
            (
                0,
                "1970-01-01 00:00:00 12 AM 001 January Jan Thursday Thu 4 70 1970-01-01 00:00:00  1 1 1 %",
            ),
            (
                951_827_696,
                "2000-02-29 12:34:56 12 PM 060 February Feb Tuesday Tue 2 00 2000-02-29 12:34:56 29 29 2 %",
            ),
            (
                4_107_542_399,
                "2100-02-28 23:59:59 11 PM 059 February Feb Sunday Sun 0 00 2100-02-28 23:59:59 28 28 2 %",
            ),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime(all, seconds).unwrap(), expected);
        }
        assert!(strftime("%Q", 0).unwrap_err().to_string().contains("`%Q`"));
        assert!(strftime("%", 0).is_err());
    }
}
