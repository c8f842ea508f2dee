/** What the derivations of objectives' configurations share: refusals, weights, counts. */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

#include <uform/plugin.h>

namespace uform {

/** Derives one configuration; the first refusal keeps its message and later ones are not looked for. */
class derivation {
public:
    /** @param of The configuration's name in messages. */
    explicit derivation(char const* of) : of_(of) {}

    /** The callback's answer. */
    uform_status_t answer(uform_declare_t const& declare) const {
        if (message_.empty())
            return uform_status_success_k;
        return declare.fail(declare.host, uform_status_invalid_argument_k, message_.c_str());
    }

protected:
    template <typename value_at, typename... parts_at>
    void refuse(char const* field, value_at value, parts_at const&... why) {
        if (!message_.empty())
            return;
        std::ostringstream text;
        text << of_ << '.' << field << " is " << value << ": ";
        (text << ... << why);
        message_ = std::move(text).str();
    }

    /** Zero derives 1, and a negative weight asks for a true zero. */
    void derive_weight(char const* field, double& weight) {
        if (!std::isfinite(weight) || !std::isfinite(static_cast<float>(weight)))
            return refuse(field, weight, "it must be finite, as a float32 too");
        weight = weight == 0 ? 1 : std::max(weight, 0.0);
    }

    void derive_count(char const* field, int32_t& count, int64_t derived) {
        if (count < 0)
            refuse(field, count, "a count is not negative");
        if (count == 0)
            count = static_cast<int32_t>(std::min<int64_t>(derived, INT32_MAX));
    }

private:
    char const* of_;
    std::string message_;
};

} // namespace uform
