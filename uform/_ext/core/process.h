/** What the C API answers about the library itself, and strings it hands over. */
#pragma once

#include <string>

namespace uform {

/** A copy to free with `uform_string_free`. */
char* copy_string(std::string const& text);

} // namespace uform
