/** Failure inside the core: one exception, and the guard that turns it into a status at the C edge. */
#pragma once

#include <cmath>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>

#include <uform/uform.h>

namespace uform {

struct error : std::exception {
    uform_status_t status;
    std::string message;
    int number = 0;   // the system's, `errno`, where a call of it failed
    std::string path; // the file that it failed on; the message begins with its name

    error(uform_status_t status, std::string message) : status(status), message(std::move(message)) {}
    char const* what() const noexcept override { return message.c_str(); }

    /** The same failure in other words. */
    error reworded(std::string words) const {
        error other = *this;
        other.message = std::move(words);
        return other;
    }
};

/** A part of a message; no number has no sign, whatever its bits say. */
template <typename part_at> part_at const& shown(part_at const& part) { return part; }
inline double shown(double part) { return std::isnan(part) ? std::fabs(part) : part; }
inline float shown(float part) { return std::isnan(part) ? std::fabs(part) : part; }

/** As many digits as tell the value from every other. */
std::string exact(float value);

/** Throws an `error` whose message is the parts end to end. */
template <typename... parts_at> [[noreturn]] void fail(uform_status_t status, parts_at const&... parts) {
    std::ostringstream text;
    (text << ... << shown(parts));
    throw error(status, std::move(text).str());
}

/** Runs `body`; what it refuses gets `where` and a colon in front. */
template <typename body_at> decltype(auto) within(std::string const& where, body_at&& body) {
    try {
        return body();
    } catch (error const& failure) {
        throw failure.reworded(where + ": " + failure.message);
    }
}

/** Remembers this thread's message for `uform_last_error`, and of a file's failure the rest. Never throws. */
void set_last_error(char const* message, int number = 0, char const* path = "") noexcept;

char const* last_error() noexcept;

/** This thread's failure as it was remembered. */
error last_failure(uform_status_t status);

/** Runs `body` and turns whatever it throws into a status and this thread's message; nothing escapes. */
template <typename body_at> uform_status_t guard(body_at&& body) noexcept {
    try {
        body();
        return uform_status_success_k;
    } catch (error const& failure) {
        set_last_error(failure.what(), failure.number, failure.path.c_str());
        return failure.status;
    } catch (std::bad_alloc const&) {
        set_last_error("the host has no memory left");
        return uform_status_out_of_memory_k;
    } catch (std::exception const& failure) {
        set_last_error(failure.what());
        return uform_status_internal_k;
    } catch (...) {
        set_last_error("an unknown failure");
        return uform_status_internal_k;
    }
}

/** Throws what a callee across the C edge answered. */
inline void check(uform_status_t status) {
    if (status != uform_status_success_k)
        throw last_failure(status);
}

} // namespace uform
